package ledger

import (
	"crypto/sha256"
	"fmt"
	"io"

	"enginebroker/matrix/regular"
)

// Verify checks the whole of a run: plan, chain, head, and every byte of every file that a record names. No findings mean
// that the evidence is what was recorded. The error is set where the run could not be read at all; the findings say why.
func Verify(dir string) (Findings, error) {
	r, found, err := Read(dir)
	if err != nil {
		return found, err
	}
	defer r.Close()
	owner := map[string]string{} // hash → path it was recorded for
	type wrong struct {
		at  int // index in found
		sum string
	}
	var edited []wrong
	for rec, err := range r.Records(KindLeg) {
		if err != nil {
			return found, err
		}
		var leg Leg
		if err := rec.Decode(&leg); err != nil {
			return found, err
		}
		for _, ref := range leg.Files {
			owner[ref.SHA256] = ref.Path
			f, got := r.sumFile(ref)
			if f == nil {
				continue
			}
			f.Seq, f.Lost = rec.Seq, "leg "+leg.Dir
			if got != "" {
				edited = append(edited, wrong{at: len(found), sum: got})
			}
			found = append(found, *f)
		}
	}
	for _, w := range edited {
		if other, ok := owner[w.sum]; ok {
			found[w.at].Code = FileSwapped
			found[w.at].Detail = fmt.Sprintf("it holds what was recorded for %s", other)
		}
	}
	orphans, err := r.orphans()
	return append(found, orphans...), err
}

// CheckFile compares one file, byte for byte by its sum, with its record; nil where it is the recorded one.
func (r *Run) CheckFile(ref FileRef) *Finding {
	f, _ := r.sumFile(ref)
	return f
}

// sumFile is CheckFile with the sum that was found, empty where there was no file.
func (r *Run) sumFile(ref FileRef) (*Finding, string) {
	f, err := regular.OpenIn(r.root, ref.Path)
	if err != nil {
		return &Finding{Code: FileMissing, Path: ref.Path, Detail: err.Error()}, ""
	}
	defer f.Close()
	m := meter{hash: sha256.New()}
	if _, err := io.Copy(&m, f); err != nil {
		return &Finding{Code: FileMissing, Path: ref.Path, Detail: err.Error()}, ""
	}
	got := m.sum()
	return ref.check(m.n, got), got
}
