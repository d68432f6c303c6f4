package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"enginebroker/matrix"
	"enginebroker/matrix/external"
	"enginebroker/matrix/regular"
)

// StateExternal is the state of a run that holds results of other clients.
const StateExternal = "external"

// importFile lies in the folder of an EXTERNAL run and lists the files it was made from, which lie beside it.
const importFile = "import.json"

// importList is what an EXTERNAL run was made from. Its report is read from the files again each time.
type importList struct {
	Schema int            `json:"schema"`
	Mark   string         `json:"mark"`
	At     string         `json:"at"` // RFC 3339
	Files  []importedFile `json:"files"`
}

type importedFile struct {
	Name   string `json:"name"` // in the run's folder
	From   string `json:"from"` // as it was named
	SHA256 string `json:"sha256"`
}

// Import keeps result files of other clients as a run marked EXTERNAL. It is all or nothing: a file that no reader knows is
// an error that names it, and no run is made.
func (s *Service) Import(ctx context.Context, name string, paths []string) (matrix.Report, error) {
	at := s.now()
	if name == "" {
		name = "external-" + at.Format("20060102-150405")
	}
	if !runRule.MatchString(name) {
		return matrix.Report{}, fail(CauseUsage, "", "run name %q: letters, digits, '.', '_' and '-', at most 80, beginning with a letter or digit", name)
	}
	list := importList{Schema: 1, Mark: external.Mark, At: at.UTC().Format("2006-01-02T15:04:05Z07:00")}
	contents := map[string][]byte{importFile: nil, summaryFile: nil}
	model := ""
	for i, path := range paths {
		if err := ctx.Err(); err != nil {
			return matrix.Report{}, &Error{Cause: CauseInterrupted, Err: err}
		}
		data, results, err := readExternal(path)
		if err != nil {
			return matrix.Report{}, &Error{Cause: CauseUsage, Err: fmt.Errorf("%s: %w", path, err)}
		}
		file := fmt.Sprintf("%d-%s", i+1, filepath.Base(path))
		list.Files = append(list.Files, importedFile{Name: file, From: path, SHA256: sum(data)})
		contents[file] = data
		if model == "" && len(results) > 0 {
			model = results[0].Model
		}
	}
	var err1, err2 error
	contents[importFile], err1 = json.MarshalIndent(list, "", " ")
	contents[summaryFile], err2 = json.Marshal(RunInfo{Name: name, Model: model, State: StateExternal, External: true, Updated: at.UTC()})
	if err := errors.Join(err1, err2, s.newRun(name, contents)); err != nil {
		return matrix.Report{}, err
	}
	return s.Report(ctx, name)
}

// newRun makes the folder of a run with these files, whole or not at all. One that exists stays as it is.
func (s *Service) newRun(name string, contents map[string][]byte) error {
	dir := filepath.Join(s.runs, name)
	if exists(dir) {
		return fail(CauseUsage, "give another name with --run", "there is a run %s already", name)
	}
	if err := os.MkdirAll(s.state, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(s.state, "import-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	for file, data := range contents {
		if err := os.WriteFile(filepath.Join(tmp, file), data, 0o644); err != nil {
			return err
		}
	}
	return os.Rename(tmp, dir)
}

// imports reads the list of an EXTERNAL run; false where the folder is none.
func imports(dir string) (importList, bool, error) {
	var list importList
	data, err := regular.ReadFile(filepath.Join(dir, importFile), external.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return list, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return list, true, fail(CauseEvidence, "", "%s: %w", filepath.Join(dir, importFile), err)
	}
	return list, true, nil
}

// imported is the report of an EXTERNAL run, read from its files again; false where the run is none. A file that is gone or
// is not what was imported is an error, never fewer results.
func (s *Service) imported(dir string) (matrix.Report, bool, error) {
	list, ok, err := imports(dir)
	if err != nil || !ok {
		return matrix.Report{}, ok, err
	}
	r := matrix.Report{Schema: reportSchema, Run: filepath.Base(dir), State: StateExternal, External: true}
	for _, f := range list.Files {
		data, results, err := readExternal(filepath.Join(dir, filepath.Base(f.Name)))
		if err == nil && sum(data) != f.SHA256 {
			err = errors.New("it is not the file that was imported")
		}
		if err != nil {
			return matrix.Report{}, true, fail(CauseEvidence, "", "run %s, file %s: %w", r.Run, f.Name, err)
		}
		for _, x := range results {
			x.File = f.Name
			r.Imported = append(r.Imported, x)
		}
	}
	return r, true, nil
}

// auditImported checks that the files of an EXTERNAL run are those that were imported and still read.
func (s *Service) auditImported(dir string) (AuditResult, bool, error) {
	out := AuditResult{Run: filepath.Base(dir)}
	_, ok, err := s.imported(dir)
	if err != nil {
		out.add("evidence", importFile, "%v", err)
	}
	return out, ok, nil
}

func readExternal(path string) ([]byte, []external.Result, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var data bytes.Buffer // what is kept is what was understood: the file is read once
	results, err := external.Read(io.TeeReader(f, &data))
	return data.Bytes(), results, err
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
