package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"enginebroker/matrix"
)

var t0 = time.Date(2026, 8, 19, 12, 0, 0, 0, time.UTC)

func plan() matrix.Plan {
	return matrix.Plan{Schema: 1, Model: "m", Seed: "7", Grids: 1,
		Method: matrix.Method{Points: []matrix.Point{{ID: "c1", OutputTokens: 8}}},
		Cost:   matrix.Cost{Loads: 1, Requests: 2}}
}

func newRun(t *testing.T) *Run {
	t.Helper()
	r, err := Create(filepath.Join(t.TempDir(), "run"), plan())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func text(s string) Writer {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func legRecord(block int) matrix.LegRecord {
	return matrix.LegRecord{
		ID:     matrix.LegID{Grid: 1, Group: "a@q|raw", Block: block, Arm: "our/s", Point: "c1"},
		EndUTC: t0.Add(time.Duration(block) * time.Minute),
		Warmup: []matrix.Request{{Repetition: -1, Prompt: "w", Outcome: matrix.OutcomeOK}},
		Repetitions: []matrix.Repetition{
			{Index: 0, Planned: 1, Requests: []matrix.Request{{Prompt: "p0", Outcome: matrix.OutcomeOK, CompletionTokens: matrix.Some(int64(8))}}},
			{Index: 1, Planned: 1, Requests: []matrix.Request{{Repetition: 1, Prompt: "p1", Outcome: matrix.OutcomeFailed, Reasons: []string{"cut"}}}},
		},
	}
}

func legFiles(n int) LegFiles {
	return LegFiles{
		Warmup:      text(fmt.Sprint("warm", n)),
		Repetitions: []Writer{text(strings.Repeat(fmt.Sprint("data: ", n, "\n\n"), 1000)), text(fmt.Sprint("two", n))},
		Clocks:      text(fmt.Sprint("clock", n)),
		LogTail:     text(fmt.Sprint("log of leg ", n, "\n")),
	}
}

// fill writes a run with three legs and closes it.
func fill(t *testing.T) string {
	t.Helper()
	r := newRun(t)
	if _, err := r.Append(KindGridOpen, t0, GridOpen{Grid: 1, BootID: "boot", Seed: "7"}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := r.PutLeg(legRecord(i), legFiles(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.PutLoad(matrix.LoadRecord{ID: "load-0", EndUTC: t0}); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return r.Dir()
}

func TestRoundTrip(t *testing.T) {
	dir := fill(t)
	if found, err := Verify(dir); err != nil || len(found) > 0 {
		t.Fatalf("a whole run does not verify: %v %v", found, err)
	}
	r, found, err := Read(dir)
	if err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
	defer r.Close()
	if diff := cmp.Diff(plan(), r.Plan()); diff != "" {
		t.Error(diff)
	}
	n := 0
	for leg, err := range r.Legs() {
		if err != nil {
			t.Fatal(err)
		}
		opts := cmp.Comparer(func(a, b matrix.Opt[int64]) bool { return a == b })
		want := legRecord(n)
		if diff := cmp.Diff(want.Repetitions, leg.Repetitions, opts, cmp.AllowUnexported(matrix.Opt[string]{})); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want.Warmup, leg.Warmup, opts); diff != "" {
			t.Error(diff)
		}
		in, err := r.OpenArrivals(leg, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(in)
		if err != nil || string(got) != strings.Repeat(fmt.Sprint("data: ", n, "\n\n"), 1000) {
			t.Errorf("arrivals of leg %d: %d bytes, %v", n, len(got), err)
		}
		in.Close()
		if _, err := r.OpenFile(leg, MemoryFile); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that was never written opens: %v", err)
		}
		n++
	}
	if n != 3 {
		t.Errorf("%d legs", n)
	}
	for load, err := range r.Loads() {
		if err != nil || load.ID != "load-0" {
			t.Error(load, err)
		}
	}
	if _, err := r.Append(KindNote, t0, Note{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a run open for reading takes a record: %v", err)
	}
}

func TestCreateRefuses(t *testing.T) {
	r := newRun(t)
	if _, err := Create(r.Dir(), plan()); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("got %v", err)
	}
	d := realDisk()
	d.free = func(string) (uint64, error) { return 1 << 20, nil }
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := create(dir, plan(), d); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused run left its directory")
	}
}

func TestOneWriter(t *testing.T) {
	r := newRun(t)
	if _, _, err := Open(r.Dir()); !errors.Is(err, ErrBusy) {
		t.Errorf("a second writer got %v", err)
	}
	other, _, err := Read(r.Dir())
	if err != nil {
		t.Fatalf("a reader beside the writer: %v", err)
	}
	other.Close()
	// Half a line of a live writer is a record being written.
	if _, err := r.file.WriteString(`{"sum":"ab`); err != nil {
		t.Fatal(err)
	}
	other, found, err := Read(r.Dir())
	if err != nil || len(found) > 0 {
		t.Fatalf("a reader beside a writer in the middle of a line: %v, %v", found, err)
	}
	other.Close()
	r.Close()
	if other, found, err = Read(r.Dir()); err != nil || !found.Has(TornLine) {
		t.Fatalf("half a line without a writer: %v, %v", found, err)
	}
	other.Close()
}

// The error of many findings tells the first of them and counts the others.
func TestErrOfManyFindings(t *testing.T) {
	found := make(Findings, mostTold)
	for i := range found {
		found[i] = Finding{Code: FileMissing, Path: fmt.Sprint("file ", i)}
	}
	if got := found.Err().Error(); strings.Contains(got, "more") || !strings.Contains(got, "file 7") {
		t.Errorf("%d findings: %s", len(found), got)
	}
	if got := append(found, found...).Err().Error(); !strings.HasSuffix(got, "\nand 8 more findings") || strings.Count(got, "\n") != mostTold {
		t.Errorf("%d findings: %s", 2*len(found), got)
	}
}

// A pipe where a file of a run is expected is an error or a finding, never a wait.
func TestPipes(t *testing.T) {
	for _, c := range []struct {
		name string
		code Code
	}{{PlanFile, PlanMissing}, {HeadFile, HeadMissing}, {LedgerFile, LedgerMissing}, {"legs/*/" + ArrivalsFile(0), FileMissing}, {"legs/*/" + RequestsFile, FileMissing}} {
		dir := fill(t)
		list, err := filepath.Glob(filepath.Join(dir, c.name))
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := errors.Join(os.Remove(list[0]), syscall.Mkfifo(list[0], 0o600)); err != nil {
			t.Fatal(err)
		}
		if found, _ := Verify(dir); !found.Has(c.code) || !strings.Contains(found.Err().Error(), "a named pipe is no regular file") {
			t.Errorf("%s: %v", c.name, found)
		}
		if c.code == FileMissing {
			continue // a leg's files are no part of opening
		}
		if _, found, err := Open(dir); err == nil || !found.Has(c.code) {
			t.Errorf("%s: opened for writing: %v, %v", c.name, found, err)
		}
	}
}

func TestTornLastLine(t *testing.T) {
	dir := fill(t)
	path := filepath.Join(dir, LedgerFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	last := len(lines) - 2 // the load record
	keep := len(whole) - len(lines[last])
	for cut := keep + 1; cut < len(whole); cut += 37 {
		// The head is one behind: it is written after the line.
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		prev, err := parse(bytes.TrimSuffix(lines[last-1], []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(head{Seq: prev.Seq, Sum: prev.Sum})
		if err := os.WriteFile(filepath.Join(dir, HeadFile), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, found, err := Read(dir); err != nil || !found.Has(TornLine) {
			t.Fatalf("cut at %d: reading found %v, %v", cut, found, err)
		}
		r, found, err := Open(dir)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if f := found.Without(SetAside); len(f) != 1 || f[0].Code != TornLine || f[0].Seq != 5 || r.Len() != 4 {
			t.Fatalf("cut at %d: found %v, %d records", cut, found, r.Len())
		}
		aside, err := os.ReadFile(filepath.Join(dir, "ledger.torn-5"))
		if err != nil || !bytes.Equal(aside, whole[keep:cut]) {
			t.Fatalf("cut at %d: set aside %q, %v", cut, aside, err)
		}
		if _, err := r.Append(KindResume, t0, Resume{Torn: matrix.Some(5)}); err != nil {
			t.Fatal(err)
		}
		r.Close()
		if found, err := Verify(dir); err != nil || len(found.Without(SetAside)) > 0 {
			t.Fatalf("cut at %d: after the resume %v, %v", cut, found, err)
		}
	}
}

func TestTamper(t *testing.T) {
	lines := func(t *testing.T, dir string, edit func([][]byte) [][]byte) {
		t.Helper()
		path := filepath.Join(dir, LedgerFile)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Join(edit(bytes.SplitAfter(b, []byte("\n"))), nil), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	leg := func(n int, file string) string {
		name, err := LegDir(legRecord(n).ID)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(LegsDir, name, file)
	}
	for name, c := range map[string]struct {
		do      func(t *testing.T, dir string)
		want    Code
		records int // that still verify
	}{
		"record edited": {func(t *testing.T, dir string) {
			lines(t, dir, func(l [][]byte) [][]byte {
				l[1] = bytes.Replace(l[1], []byte("p0"), []byte("p9"), 1)
				l[1] = bytes.Replace(l[1], []byte(`"block":0`), []byte(`"block":7`), 1)
				return l
			})
		}, EditedRecord, 1},
		"record removed": {func(t *testing.T, dir string) {
			lines(t, dir, func(l [][]byte) [][]byte { return append(l[:2:2], l[3:]...) })
		}, BrokenChain, 2},
		"records swapped": {func(t *testing.T, dir string) {
			lines(t, dir, func(l [][]byte) [][]byte { l[1], l[2] = l[2], l[1]; return l })
		}, BrokenChain, 1},
		"last record removed": {func(t *testing.T, dir string) {
			lines(t, dir, func(l [][]byte) [][]byte { return l[:4] })
		}, LedgerCut, 4},
		"all records removed": {func(t *testing.T, dir string) {
			lines(t, dir, func([][]byte) [][]byte { return nil })
		}, LedgerCut, 0},
		"a line of rubbish": {func(t *testing.T, dir string) {
			lines(t, dir, func(l [][]byte) [][]byte { return append(l[:5:5], []byte("\x00\xff\n")) })
		}, BadRecord, 5},
		"ledger gone": {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, LedgerFile)) }, LedgerMissing, 0},
		"head gone":   {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, HeadFile)) }, HeadMissing, 5},
		"file gone":   {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, leg(1, ClocksFile))) }, FileMissing, 5},
		"file cut": {func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, leg(1, ArrivalsFile(0))), 9); err != nil {
				t.Fatal(err)
			}
		}, FileTruncated, 5},
		"file edited": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, leg(1, LogFile)), []byte("log of leg X\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, FileEdited, 5},
		"file swapped": {func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, leg(2, LogFile)))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, leg(1, LogFile)), b, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, FileSwapped, 5},
		"orphan": {func(t *testing.T, dir string) { os.Mkdir(filepath.Join(dir, LegsDir, "x"+tmpSuffix), 0o755) }, OrphanLeg, 5},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fill(t)
			c.do(t, dir)
			found, err := Verify(dir)
			if err != nil {
				t.Fatal(err)
			}
			if !found.Has(c.want) {
				t.Errorf("found %v, want %s", found, c.want)
			}
			for _, f := range found {
				if f.Path == "" || f.Lost == "" {
					t.Errorf("%+v does not say where and what is lost", f)
				}
			}
			r, _, err := Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			n := 0
			for _, err := range r.Records() {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n != c.records {
				t.Errorf("%d records can be read, want %d", n, c.records)
			}
			if found.Has(EditedRecord, BrokenChain, LedgerCut, BadRecord, LedgerMissing, HeadMissing) {
				if _, _, err := Open(dir); err == nil {
					t.Error("a broken ledger opens for writing")
				}
			}
			if c.want == OrphanLeg {
				w, found, err := Open(dir)
				if err != nil || !found.Has(OrphanLeg) {
					t.Errorf("opened for writing: %v, %v", found, err)
				}
				w.Close()
			}
		})
	}
}

func TestPlanEdited(t *testing.T) {
	for name, do := range map[string]func(dir string) error{
		"edited": func(dir string) error {
			p := plan()
			p.Seed = "8"
			b, err := matrix.Canonical(p)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, PlanFile), b, 0o644)
		},
		"gone":    func(dir string) error { return os.Remove(filepath.Join(dir, PlanFile)) },
		"rubbish": func(dir string) error { return os.WriteFile(filepath.Join(dir, PlanFile), []byte("{"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := fill(t)
			if err := do(dir); err != nil {
				t.Fatal(err)
			}
			found, err := Verify(dir)
			if err == nil || !found.Has(PlanEdited, PlanMissing) {
				t.Errorf("found %v, %v", found, err)
			}
		})
	}
	t.Run("before the first record", func(t *testing.T) {
		r := newRun(t)
		if err := os.WriteFile(filepath.Join(r.Dir(), PlanFile), []byte(`{"seed":"8"}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if found, err := Verify(r.Dir()); err == nil || !found.Has(PlanEdited) {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// What a later version wrote is not guessed at.
func TestPlanOfALaterVersion(t *testing.T) {
	p := plan()
	p.Schema = matrix.PlanSchema + 1
	r, err := Create(filepath.Join(t.TempDir(), "run"), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(r.Dir()); err == nil || !strings.Contains(err.Error(), "its format is 2 and this program reads up to 1") {
		t.Errorf("read: %v", err)
	}
}

// An edited arrival log is found by whoever reads it, not by audits alone.
func TestReaderFindsEdit(t *testing.T) {
	dir := fill(t)
	name, _ := LegDir(legRecord(0).ID)
	file := filepath.Join(dir, LegsDir, name, LogFile)
	if err := os.WriteFile(file, []byte("log of leg 9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, _, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for leg, err := range r.Legs() {
		if err != nil {
			t.Fatal(err)
		}
		in, err := r.OpenFile(leg, LogFile)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(in)
		in.Close()
		var f *Finding
		if leg.ID.Block == 0 && (!errors.As(err, &f) || f.Code != FileEdited) {
			t.Errorf("got %v", err)
		}
		if leg.ID.Block != 0 && err != nil {
			t.Error(err)
		}
	}
}

// full is a disk with room for a number of bytes.
type full struct {
	f    *os.File
	room *int
}

func (w full) Write(p []byte) (int, error) {
	n := min(len(p), *w.room)
	*w.room -= n
	m, err := w.f.Write(p[:n])
	if err == nil && m < len(p) {
		err = &os.PathError{Op: "write", Path: w.f.Name(), Err: syscall.ENOSPC}
	}
	return m, err
}

func (w full) Sync() error { return w.f.Sync() }

func TestDiskFull(t *testing.T) {
	for room := 0; room < 4000; room += 331 {
		r := newRun(t)
		if err := r.PutLeg(legRecord(0), legFiles(0)); err != nil {
			t.Fatal(err)
		}
		left := room
		r.disk.wrap = func(_ string, f *os.File) syncWriter { return full{f, &left} }
		err := r.PutLeg(legRecord(1), legFiles(1))
		if err == nil {
			continue
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), r.Dir()) {
			t.Fatalf("room %d: %v", room, err)
		}
		inLedger := strings.Contains(err.Error(), HeadFile)
		r.Close()
		found, verr := Verify(r.Dir())
		if verr != nil || len(found.Without(OrphanLeg)) > 0 {
			t.Fatalf("room %d: %v %v", room, found, verr)
		}
		again, _, err := Open(r.Dir())
		if err != nil {
			t.Fatalf("room %d: %v", room, err)
		}
		if want := map[bool]int{false: 1, true: 2}[inLedger]; again.Len() != want {
			t.Fatalf("room %d: %d records, want %d", room, again.Len(), want)
		}
		if err := again.PutLeg(legRecord(1), legFiles(1)); err != nil {
			t.Fatalf("room %d: with space again: %v", room, err)
		}
		again.Close()
	}
}

// A real full file system, where this test may mount one.
func TestDiskFullTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	d := realDisk()
	if _, err := create(filepath.Join(dir, "run"), plan(), d); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a file system that is too small takes a run: %v", err)
	}
	d.free = func(string) (uint64, error) { return 1 << 40, nil }
	r, err := create(filepath.Join(dir, "run"), plan(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for n := 0; ; n++ {
		files := legFiles(n)
		files.LogTail = text(strings.Repeat("x", 40<<10))
		if err = r.PutLeg(legRecord(n), files); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if found, err := Verify(r.Dir()); err != nil || len(found) > 0 || r.Len() == 0 {
		t.Errorf("after the disk was full: %d records, %v, %v", r.Len(), found, err)
	}
}

func TestLegDir(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []matrix.LegID{{}, {Arm: "../../etc"}, {Arm: "__/__/etc"}, {Arm: strings.Repeat("ü", 300), Point: "a\x00b\n"}, {LeadIn: true}} {
		d, err := LegDir(id)
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(d) || strings.ContainsAny(d, "/\\.\x00\n ") || len(d) > 200 || seen[d] {
			t.Errorf("%+v → %q", id, d)
		}
		seen[d] = true
	}
}

func TestUnknownIsAnError(t *testing.T) {
	r := newRun(t)
	if _, err := r.Append("nonsense", t0, Note{}); err == nil {
		t.Error("an unknown kind is recorded")
	}
	rec, err := r.Append(KindNote, t0, map[string]string{"text": "x", "more": "y"})
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Decode(&Note{}); err == nil {
		t.Error("an unknown field is ignored")
	}
}

func TestReports(t *testing.T) {
	r := newRun(t)
	if err := r.WriteReport("report.md", []byte("# x")); err != nil {
		t.Fatal(err)
	}
	if b, err := r.ReadReport("report.md"); err != nil || string(b) != "# x" {
		t.Error(b, err)
	}
	if err := r.WriteReport("../x", nil); err == nil {
		t.Error("a report outside the run")
	}
}

func FuzzParse(f *testing.F) {
	rec := Record{Seq: 1, Prev: strings.Repeat("0", 64), Plan: strings.Repeat("1", 64), Kind: KindNote, Time: t0, Body: json.RawMessage(`{"text":"x"}`)}
	line, err := rec.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"sum":"","seq":1}`))
	f.Add([]byte(`{"sum":"` + strings.Repeat("a", 64) + `",}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The sum is made right, so that the fuzzer gets past it.
		if len(b) > len(sumOpen)+sumLen+len(sumClose) {
			fixed := append([]byte(nil), b...)
			s := sum(append([]byte("{"), fixed[len(sumOpen)+sumLen+len(sumClose):]...))
			copy(fixed, sumOpen)
			copy(fixed[len(sumOpen):], s)
			copy(fixed[len(sumOpen)+sumLen:], sumClose)
			b = fixed
		}
		got, err := parse(b)
		if err != nil {
			return
		}
		again, err := got.encode()
		if err != nil {
			t.Fatalf("%q parses and cannot be written: %v", b, err)
		}
		if back, err := parse(again); err != nil || back.Kind != got.Kind || back.Seq != got.Seq {
			t.Fatalf("%q comes back as %+v, %v", b, back, err)
		}
	})
}

func FuzzReplay(f *testing.F) {
	f.Add([]byte("{}\n"))
	f.Add([]byte("\n\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRun(t)
		defer r.Close()
		if _, err := r.Append(KindNote, t0, Note{Text: "first"}); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(filepath.Join(r.Dir(), LedgerFile), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		file.Write(b)
		file.Close()
		c, found, err := Read(r.Dir())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Len() != 1 || len(b) > 0 && len(found) == 0 {
			t.Fatalf("%q behind a good ledger: %d records, %v", b, c.Len(), found)
		}
	})
}
