package ledger

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Bounds of the files that are read whole.
const (
	maxPlan   = 64 << 20
	maxHead   = 4 << 10
	maxReport = 256 << 20
)

// readable refuses the plan of a later version, whose fields could only be guessed.
func readable(plan []byte) error {
	var v struct{ Schema int }
	if err := json.Unmarshal(plan, &v); err == nil && v.Schema > matrix.PlanSchema {
		return fmt.Errorf("its format is %d and this program reads up to %d: use the version that made the run, or a later one", v.Schema, matrix.PlanSchema)
	}
	return nil // what is no JSON is told by who decodes it
}

// replay reads plan and ledger and sets the run to the records that verify.
func (r *Run) replay() (Findings, error) {
	text, err := regular.ReadFileIn(r.root, PlanFile, maxPlan)
	if err != nil {
		return Findings{{Code: PlanMissing, Path: PlanFile, Detail: err.Error(), Lost: "the whole run"}}, fmt.Errorf("%s: %w", r.dir, err)
	}
	err = readable(text)
	if err == nil {
		err = strict(text, &r.plan)
	}
	if err != nil {
		err = fmt.Errorf("%s: not a plan that can be read: %w", filepath.Join(r.dir, PlanFile), err)
		return Findings{{Code: PlanMissing, Path: PlanFile, Detail: err.Error(), Lost: "the whole run"}}, err
	}
	r.hash = sum(text)

	var found Findings
	var want head
	if b, err := regular.ReadFileIn(r.root, HeadFile, maxHead); err != nil {
		found = append(found, Finding{Code: HeadMissing, Path: HeadFile, Detail: err.Error(), Lost: "the proof that the ledger's end is its end"})
	} else if err := json.Unmarshal(b, &want); err != nil {
		found = append(found, Finding{Code: HeadMissing, Path: HeadFile, Detail: err.Error(), Lost: "the proof that the ledger's end is its end"})
	} else if want.Seq == 0 && want.Sum != r.hash {
		return append(found, planEdited(want.Sum, r.hash)), fmt.Errorf("%s: plan.json is not the plan this run was made with", r.dir)
	}

	r.head, r.size = head{Sum: r.hash}, 0
	passed := want.Seq == 0 // the record the head names was seen
	for rec, err := range r.scan() {
		if err != nil {
			var f *Finding
			if !errors.As(err, &f) {
				return found, err
			}
			if f.Code == PlanEdited {
				return append(found, *f), fmt.Errorf("%s: %w", r.dir, err)
			}
			found = append(found, *f)
			break
		}
		passed = passed || rec.Seq == want.Seq && rec.Sum == want.Sum
	}
	if !passed {
		found = append(found, Finding{Code: LedgerCut, Path: LedgerFile, Seq: want.Seq,
			Detail: fmt.Sprintf("the head names record %d and the records that verify end at %d", want.Seq, r.head.Seq),
			Lost:   fmt.Sprintf("records %d to %d", r.head.Seq+1, want.Seq)})
	}
	torn, err := fs.Glob(r.root.FS(), tornPrefix+"*")
	for _, name := range torn {
		found = append(found, Finding{Code: SetAside, Path: name, Detail: "what a crash left of a record", Lost: "the leg or record in flight"})
	}
	return found, err
}

// Error makes a finding usable as the error of an iteration.
func (f *Finding) Error() string { return f.String() }

func planEdited(want, got string) Finding {
	return Finding{Code: PlanEdited, Path: PlanFile, Detail: fmt.Sprintf("sha256 %s, and the ledger was written for %s", got, want),
		Lost: "the whole run: restore the plan it was made with"}
}

// scan yields the records of the ledger from its beginning, checking sum, order and plan, and moves the run's head and
// size along. It ends with a *Finding at the first line that does not verify.
func (r *Run) scan() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		f, err := regular.OpenIn(r.root, LedgerFile)
		if err != nil {
			yield(Record{}, &Finding{Code: LedgerMissing, Path: LedgerFile, Detail: err.Error(), Lost: "every record"})
			return
		}
		defer f.Close()
		in := bufio.NewReaderSize(f, 1<<16)
		for {
			line, whole, err := readLine(in)
			if errors.Is(err, io.EOF) {
				return
			}
			next := r.head.Seq + 1
			bad := func(code Code, detail string) {
				lost := fmt.Sprintf("record %d and all after it", next)
				if code == TornLine {
					lost = fmt.Sprintf("record %d, the one in flight: %d bytes", next, len(line))
				}
				yield(Record{}, &Finding{Code: code, Path: LedgerFile, Seq: next, Detail: detail, Lost: lost})
			}
			if errors.Is(err, errLine) {
				bad(BadRecord, err.Error())
				return
			}
			if err != nil {
				yield(Record{}, fmt.Errorf("%s: %w", filepath.Join(r.dir, LedgerFile), err))
				return
			}
			if !whole {
				bad(TornLine, "the line has no end")
				return
			}
			rec, err := parse(line)
			switch {
			case errors.Is(err, errEdited):
				bad(EditedRecord, err.Error())
				return
			case err != nil:
				bad(BadRecord, err.Error())
				return
			case rec.Plan != r.hash:
				f := planEdited(rec.Plan, r.hash)
				yield(Record{}, &f)
				return
			case rec.Seq != next || rec.Prev != r.head.Sum:
				bad(BrokenChain, fmt.Sprintf("it says it is record %d after %.12s, and stands after record %d, %.12s", rec.Seq, rec.Prev, r.head.Seq, r.head.Sum))
				return
			}
			r.head = head{Seq: rec.Seq, Sum: rec.Sum}
			r.size += int64(len(line)) + 1
			if !yield(rec, nil) {
				return
			}
		}
	}
}

const tornPrefix = "ledger.torn-"

// setAside moves what is left of a torn line into a file of its own.
func (r *Run) setAside(found Findings) error {
	if !found.Has(TornLine) {
		return nil
	}
	f, err := regular.OpenIn(r.root, LedgerFile)
	if err != nil {
		return err
	}
	defer f.Close()
	rest, err := io.ReadAll(io.NewSectionReader(f, r.size, 2*maxLine))
	if err != nil {
		return err
	}
	if err := r.replace(fmt.Sprintf("%s%d", tornPrefix, r.head.Seq+1), rest); err != nil {
		return err
	}
	if err := r.file.Truncate(r.size); err != nil {
		return err
	}
	return r.file.Sync()
}

// Records yields the records that verify, in order, of the kinds named, or of every kind. Memory is that of one record.
func (r *Run) Records(of ...Kind) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		r.mu.Lock()
		last := r.head.Seq
		r.mu.Unlock()
		// A copy: an iteration moves its own head and leaves the run's alone.
		c := &Run{dir: r.dir, root: r.root, hash: r.hash, head: head{Sum: r.hash}}
		if last == 0 {
			return
		}
		for rec, err := range c.scan() {
			if err != nil {
				yield(rec, err)
				return
			}
			if (len(of) == 0 || slices.Contains(of, rec.Kind)) && !yield(rec, nil) {
				return
			}
			if rec.Seq == last {
				return
			}
		}
	}
}

// Bodies yields the bodies of the records of one kind with their records.
func Bodies[T any](r *Run, kind Kind) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for rec, err := range r.Records(kind) {
			var body T
			if err == nil {
				err = rec.Decode(&body)
			}
			if !yield(body, err) || err != nil {
				return
			}
		}
	}
}

// Loads yields the loads of the run in order of execution.
func (r *Run) Loads() iter.Seq2[matrix.LoadRecord, error] {
	return Bodies[matrix.LoadRecord](r, KindLoad)
}

// PutLoad records a finished load.
func (r *Run) PutLoad(rec matrix.LoadRecord) error {
	_, err := r.Append(KindLoad, rec.EndUTC, rec)
	return err
}

// orphans finds the directories of legs that no record names.
func (r *Run) orphans() (Findings, error) {
	known := map[string]bool{}
	for rec, err := range r.Records(KindLeg) {
		var leg struct {
			Dir string `json:"dir"`
		}
		if err == nil {
			err = json.Unmarshal(rec.Body, &leg)
		}
		if err != nil {
			return nil, err
		}
		known[leg.Dir] = true
	}
	dirs, err := fs.ReadDir(r.root.FS(), LegsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found Findings
	for _, d := range dirs {
		path := LegsDir + "/" + d.Name()
		if known[path] {
			continue
		}
		detail := "no record names it"
		if strings.HasSuffix(d.Name(), tmpSuffix) {
			detail = "it was not finished"
		}
		found = append(found, Finding{Code: OrphanLeg, Path: path, Detail: detail, Lost: "this leg; it is not used"})
	}
	return found, err
}
