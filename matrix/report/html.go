package report

import (
	_ "embed"
	"html/template"
	"io"

	"enginebroker/matrix"
)

//go:embed report.html
var htmlText string

var htmlPage = template.Must(template.New("report").Funcs(template.FuncMap{
	"clean": func(s any) string { return clean(textOf(s)) }, "legName": legName, "codes": codes, "loadEnd": loadEnd, "offers": offers, "armList": armList,
	"dash": func(s string) string {
		if s == "" {
			return absent
		}
		return s
	},
	"short": func(s string) string { return clean(s[:min(len(s), 12)]) },
	"inc":   func(i int) int { return i + 1 },
	"words": func(c matrix.Reason) string { return Words(c) },
}).Parse(htmlText))

func textOf(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case matrix.Reason:
		return string(x)
	case matrix.Cause:
		return string(x)
	}
	return ""
}

// HTML writes the whole report as one page that needs no network: light or dark as the reader prefers, tables with their
// headings, verdicts as words and not as colours alone.
func HTML(w io.Writer, r matrix.Report) error {
	return htmlPage.Execute(w, struct {
		matrix.Report
		Stamp, ExternalStamp, BesideNote string
		Caveats                          []string
		Sections                         []section
		Beside                           beside
	}{r, Stamp, ExternalStamp, besideNote, caveats(r, true), sections(r, true), besides(r.Imported)})
}
