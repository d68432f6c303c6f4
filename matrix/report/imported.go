package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// beside is what other clients say, one column a result. The names of its rows are ours, what they mean is each tool's.
type beside struct {
	Columns []column
	Rows    []besideRow
}

type column struct {
	Head, Formula, About, Counts string
	Notes                        []string // warnings of the reader and what the file lacks
}

type besideRow struct {
	Name, Unit string
	Cells      []string // as many as columns; absent where the tool does not say
}

// besides lays imported results side by side. Everything in it is clean.
func besides(list []matrix.Imported) beside {
	var b beside
	at := map[string]int{}
	for i, x := range list {
		c := column{Head: clean(x.Tool), Formula: clean(x.Formula), About: clean(x.File), Counts: counts(x)}
		for _, w := range x.Warnings {
			c.Notes = append(c.Notes, clean(w))
		}
		if len(x.Missing) > 0 {
			c.Notes = append(c.Notes, "not in the file: "+clean(strings.Join(x.Missing, ", ")))
		}
		if x.Model != "" {
			c.About += " · model " + clean(x.Model)
		}
		if n, ok := x.Concurrency.Get(); ok {
			c.About += fmt.Sprintf(" · concurrency %d", n)
		}
		b.Columns = append(b.Columns, c)
		for _, n := range x.Numbers {
			row, ok := at[n.Name+"/"+n.Unit]
			if !ok {
				row = len(b.Rows)
				at[n.Name+"/"+n.Unit] = row
				b.Rows = append(b.Rows, besideRow{Name: clean(n.Name), Unit: clean(n.Unit), Cells: slices.Repeat([]string{absent}, len(list))})
			}
			b.Rows[row].Cells[i] = number(n.Value)
		}
	}
	return b
}

// counts are the requests as the file counts them; what it does not say is a dash.
func counts(x matrix.Imported) string {
	say := func(n matrix.Opt[int64]) string {
		if v, ok := n.Get(); ok {
			return strconv.FormatInt(v, 10)
		}
		return absent
	}
	s := fmt.Sprintf("%s planned, %s ok, %s failed", say(x.Planned), say(x.OK), say(x.Failed))
	if n, ok := x.Incomplete.Get(); ok {
		s += fmt.Sprintf(", %d incomplete", n)
	}
	return s + " (as the file says)"
}

const besideNote = "One column a result. Rows carry our names, but each number is computed by its tool's formula: two columns are never one thing measured twice."

// importedTerminal writes the report of an EXTERNAL run.
func importedTerminal(p *page, r matrix.Report) error {
	p.banner(ExternalStamp)
	p.title("imported results", "run "+clean(r.Run))
	p.wrapIn(dim, "", besideNote)
	b := besides(r.Imported)
	for i, c := range b.Columns {
		p.blank()
		p.title(fmt.Sprintf("#%d %s", i+1, c.Head), c.Formula)
		p.wrap("  ", c.Counts)
		p.wrap("  ", c.About)
		for _, n := range c.Notes {
			p.wrap("  note: ", n)
		}
	}
	const name, cell = 18, 11
	width := max((p.width-name-6)/cell, 1)
	for from := 0; from < len(b.Columns); from += width {
		to := min(from+width, len(b.Columns))
		head := fit("", name+6)
		for i := from; i < to; i++ {
			head += fit(fmt.Sprintf("#%d", i+1), cell)
		}
		p.blank()
		p.put(p.paint(bold, strings.TrimRight(head, " ")))
		for _, row := range b.Rows {
			s := fit(row.Name, name) + fit(row.Unit, 6)
			for _, c := range row.Cells[from:to] {
				s += fit(c, cell)
			}
			p.put(strings.TrimRight(s, " "))
		}
	}
	p.blank()
	p.banner(ExternalStamp)
	return p.err
}

func importedMarkdown(w io.Writer, r matrix.Report) error {
	d := &doc{w: w}
	d.linef("# Imported results: run %s", md(r.Run))
	d.linef("> **%s**", ExternalStamp)
	d.linef("%s", besideNote)
	b := besides(r.Imported)
	d.head("#", "tool", "formula", "requests", "from", "notes")
	head := []string{"metric"}
	for i, c := range b.Columns {
		n := fmt.Sprintf("#%d", i+1)
		head = append(head, n)
		d.row(n, md(c.Head), md(c.Formula), c.Counts, md(c.About), md(strings.Join(c.Notes, "; ")))
	}
	d.put("\n")
	d.head(head...)
	for _, row := range b.Rows {
		d.row(append([]string{md(row.Name + " (" + row.Unit + ")")}, row.Cells...)...)
	}
	return d.err
}

// importedCSV writes one line a number, and one with no number for a result that has none.
func importedCSV(w io.Writer, r matrix.Report) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"run", "stamp", "result", "tool", "formula", "file", "planned", "ok", "failed", "metric", "unit", "value", "field"}}
	opt := func(n matrix.Opt[int64]) string {
		if v, ok := n.Get(); ok {
			return strconv.FormatInt(v, 10)
		}
		return ""
	}
	for i, x := range r.Imported {
		head := []string{r.Run, "EXTERNAL", strconv.Itoa(i + 1), x.Tool, x.Formula, x.File, opt(x.Planned), opt(x.OK), opt(x.Failed)}
		if len(x.Numbers) == 0 {
			rows = append(rows, slices.Concat(head, []string{"", "", "", ""}))
		}
		for _, n := range x.Numbers {
			rows = append(rows, slices.Concat(head, []string{n.Name, n.Unit, exact(matrix.Some(n.Value)), n.Field}))
		}
	}
	for _, row := range rows {
		for i := range row {
			row[i] = cellText(row[i])
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
