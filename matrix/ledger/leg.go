package ledger

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Names of the files of a leg. Those that end in .zst are compressed.
const (
	RequestsFile = "requests.jsonl"
	WarmupFile   = "warmup.arrivals.zst"
	ClocksFile   = "clocks.jsonl.zst"
	MemoryFile   = "memory.jsonl.zst"
	LogFile      = "engine.log"

	tmpSuffix = ".tmp"
)

// ArrivalsFile names the arrival log of one repetition.
func ArrivalsFile(repetition int) string { return fmt.Sprintf("rep-%03d.arrivals.zst", repetition) }

// Writer writes one piece of evidence, as its owner formats it.
type Writer = func(io.Writer) error

// LegFiles are the raw evidence of a leg. A nil Writer is evidence that does not exist; whether it should is said in
// LegRecord.Missing.
type LegFiles struct {
	Warmup      Writer   // arrival log of the warm-up
	Repetitions []Writer // arrival log of each repetition, in order
	Clocks      Writer   // raw device samples
	Memory      Writer   // raw memory samples
	LogTail     Writer   // tail of the engine's log
}

// FileRef is one file of a leg as its record pins it.
type FileRef struct {
	Path   string `json:"path"` // relative to the run's directory, slashes
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Leg is a leg's record and its files. In the ledger its requests lie in RequestsFile.
type Leg struct {
	matrix.LegRecord
	Dir   string    `json:"dir"` // relative to the run's directory
	Files []FileRef `json:"files"`
}

// File finds a file of the leg by its base name.
func (l Leg) File(name string) (FileRef, bool) {
	for _, f := range l.Files {
		if path.Base(f.Path) == name {
			return f, true
		}
	}
	return FileRef{}, false
}

// LegDir returns the name of a leg's directory: readable, safe on every file system, and different for different legs.
func LegDir(id matrix.LegID) (string, error) {
	digest, err := matrix.Digest(id)
	if err != nil {
		return "", err
	}
	lead := ""
	if id.LeadIn {
		lead = "-lead"
	}
	return fmt.Sprintf("g%d-sb%d-b%d-p%d%s-%s-%s-%s", id.Grid, id.Superblock, id.Block, id.Position, lead, slug(id.Arm), slug(id.Point), digest[:12]), nil
}

// slug keeps what is safe in a file name; the digest beside it tells apart what it folds together.
func slug(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, s)
	return s[:min(len(s), 40)]
}

// PutLeg writes the files of a leg, then its record. After an error the leg has no record, unless the error names the head
// file: then the record is whole and the next append repairs the head.
func (r *Run) PutLeg(rec matrix.LegRecord, files LegFiles) (err error) {
	if !r.writable() {
		return ErrReadOnly
	}
	dir, err := r.freeLegDir(rec.ID)
	if err != nil {
		return err
	}
	tmp := dir + tmpSuffix
	if err := r.root.Mkdir(tmp, 0o755); err != nil {
		return r.nameSpace(tmp, err)
	}
	defer func() {
		if err != nil {
			r.root.RemoveAll(tmp)
		}
	}()
	leg := Leg{LegRecord: rec, Dir: dir}
	put := func(name string, w Writer) {
		if w == nil || err != nil {
			return
		}
		if strings.HasSuffix(name, ".zst") {
			w = compressed(w)
		}
		var ref FileRef
		ref.Bytes, ref.SHA256, err = r.write(tmp+"/"+name, w)
		ref.Path = dir + "/" + name
		leg.Files = append(leg.Files, ref)
	}
	put(RequestsFile, func(w io.Writer) error { return writeRequests(w, rec) })
	put(WarmupFile, files.Warmup)
	for i, w := range files.Repetitions {
		put(ArrivalsFile(i), w)
	}
	put(ClocksFile, files.Clocks)
	put(MemoryFile, files.Memory)
	put(LogFile, files.LogTail)
	if err != nil {
		return err
	}
	if err := errors.Join(r.disk.syncDir(r.root, tmp), r.root.Rename(tmp, dir), r.disk.syncDir(r.root, LegsDir)); err != nil {
		return r.nameSpace(dir, err)
	}
	leg.Warmup = nil
	leg.Repetitions = append([]matrix.Repetition(nil), rec.Repetitions...)
	for i := range leg.Repetitions {
		leg.Repetitions[i].Requests = nil
	}
	_, err = r.Append(KindLeg, rec.EndUTC, leg)
	return err
}

// freeLegDir returns the first directory name of a leg that is not taken: a leg that is run again after a crash leaves the
// evidence of the first attempt where it is.
func (r *Run) freeLegDir(id matrix.LegID) (string, error) {
	name, err := LegDir(id)
	if err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		dir := LegsDir + "/" + name
		if n > 1 {
			dir += "-" + strconv.Itoa(n)
		}
		_, err := r.root.Lstat(dir)
		_, tmp := r.root.Lstat(dir + tmpSuffix)
		if errors.Is(err, fs.ErrNotExist) && errors.Is(tmp, fs.ErrNotExist) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
}

// write writes and syncs one new file and returns its size and hash.
func (r *Run) write(name string, fill Writer) (int64, string, error) {
	f, err := r.root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, "", r.nameSpace(name, err)
	}
	out := r.disk.wrap(name, f)
	m := &meter{hash: sha256.New()}
	buf := bufio.NewWriterSize(io.MultiWriter(out, m), 1<<16)
	err = fill(buf)
	if err == nil {
		err = buf.Flush()
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, "", r.nameSpace(name, err)
	}
	return m.n, m.sum(), nil
}

// meter counts and hashes what passes.
type meter struct {
	hash hash.Hash
	n    int64
}

func (m *meter) Write(p []byte) (int, error) {
	m.n += int64(len(p))
	return m.hash.Write(p)
}

func (m *meter) sum() string { return hex.EncodeToString(m.hash.Sum(nil)) }

func compressed(w Writer) Writer {
	return func(out io.Writer) error {
		z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<20))
		if err != nil {
			return err
		}
		return errors.Join(w(z), z.Close())
	}
}

func writeRequests(w io.Writer, rec matrix.LegRecord) error {
	enc := json.NewEncoder(w)
	for _, q := range rec.Warmup {
		q.Repetition = -1
		if err := enc.Encode(q); err != nil {
			return err
		}
	}
	for i, rep := range rec.Repetitions {
		for _, q := range rep.Requests {
			if q.Repetition != i {
				return fmt.Errorf("request %d stands in repetition %d and says it is of %d", q.Index, i, q.Repetition)
			}
			if err := enc.Encode(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// Legs yields the legs of the run in order of execution, with their requests. A leg whose requests do not verify comes
// without them, and its error is a *Finding; the iteration goes on after it if the caller does.
func (r *Run) Legs() iter.Seq2[Leg, error] {
	return func(yield func(Leg, error) bool) {
		for leg, err := range Bodies[Leg](r, KindLeg) {
			if err == nil {
				err = r.readRequests(&leg)
			}
			if !yield(leg, err) {
				return
			}
		}
	}
}

func (r *Run) readRequests(leg *Leg) error {
	f, err := r.OpenFile(*leg, RequestsFile)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	var warm []matrix.Request
	reps := make([][]matrix.Request, len(leg.Repetitions))
	for {
		line, _, err := readLine(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var q matrix.Request
		if err := strict(line, &q); err != nil {
			return fmt.Errorf("%s/%s: %w", leg.Dir, RequestsFile, err)
		}
		switch {
		case q.Repetition == -1:
			warm = append(warm, q)
		case q.Repetition >= 0 && q.Repetition < len(reps):
			reps[q.Repetition] = append(reps[q.Repetition], q)
		default:
			return fmt.Errorf("%s/%s: request %d is of repetition %d and the leg has %d", leg.Dir, RequestsFile, q.Index, q.Repetition, len(reps))
		}
	}
	leg.Warmup = warm
	for i := range reps {
		leg.Repetitions[i].Requests = reps[i]
	}
	return nil
}

// OpenArrivals opens the arrival log of one repetition, uncompressed.
func (r *Run) OpenArrivals(leg Leg, repetition int) (io.ReadCloser, error) {
	return r.OpenFile(leg, ArrivalsFile(repetition))
}

// OpenFile opens a file of a leg by its base name, uncompressed. Where the file is not what was recorded, the reader's end
// is a *Finding and not io.EOF.
func (r *Run) OpenFile(leg Leg, name string) (io.ReadCloser, error) {
	ref, ok := leg.File(name)
	if !ok {
		return nil, fmt.Errorf("%s: the leg's record lists no %s: %w", leg.Dir, name, fs.ErrNotExist)
	}
	f, err := regular.OpenIn(r.root, ref.Path)
	if err != nil {
		return nil, &Finding{Code: FileMissing, Path: ref.Path, Detail: err.Error(), Lost: "leg " + leg.Dir}
	}
	e := &evidence{file: f, ref: ref, leg: leg.Dir, meter: meter{hash: sha256.New()}}
	e.raw = io.TeeReader(f, &e.meter)
	e.out = e.raw
	if strings.HasSuffix(name, ".zst") {
		if e.zstd, err = zstd.NewReader(e.raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(64<<20)); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		e.out = e.zstd
	}
	return e, nil
}

// evidence reads a file and checks at its end that it was the recorded one.
type evidence struct {
	file  *os.File
	ref   FileRef
	leg   string
	meter meter
	raw   io.Reader // the file, through the meter
	zstd  *zstd.Decoder
	out   io.Reader
}

func (e *evidence) Read(p []byte) (int, error) {
	n, err := e.out.Read(p)
	if err == nil {
		return n, nil
	}
	// Whatever ended the reading, the file's own hash says whether it is to blame.
	if _, drain := io.Copy(io.Discard, e.raw); drain != nil {
		return n, drain
	}
	if f := e.ref.check(e.meter.n, e.meter.sum()); f != nil {
		f.Lost = "leg " + e.leg
		return n, f
	}
	return n, err
}

func (e *evidence) Close() error {
	if e.zstd != nil {
		e.zstd.Close()
	}
	return e.file.Close()
}

// check compares a file with its record.
func (f FileRef) check(n int64, sum string) *Finding {
	switch {
	case n < f.Bytes:
		return &Finding{Code: FileTruncated, Path: f.Path, Detail: fmt.Sprintf("it has %d bytes of %d", n, f.Bytes)}
	case n != f.Bytes || sum != f.SHA256:
		return &Finding{Code: FileEdited, Path: f.Path, Detail: fmt.Sprintf("sha256 %.12s (%d bytes), recorded %.12s (%d bytes)", sum, n, f.SHA256, f.Bytes)}
	}
	return nil
}
