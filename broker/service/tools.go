package service

import (
	"context"
	"io"

	"enginebroker/engines/artifact"
	"enginebroker/matrix"
	"enginebroker/matrix/regular"
	"enginebroker/matrix/stopwatch"
	"enginebroker/matrix/vectors"
)

// CheckProtocol runs every case of a vector file through the functions the product uses and prints each. It returns how
// many failed.
func CheckProtocol(w io.Writer, path string) (failed int, err error) {
	data, err := regular.ReadFile(path, 16<<20)
	if err != nil {
		return 0, &Error{Cause: CauseUsage, Err: err}
	}
	f, err := vectors.Read(data)
	if err != nil {
		return 0, fail(CauseUsage, "", "%s:%w", path, err)
	}
	return vectors.Print(w, f.Run())
}

// Stream is what one recorded stream parses to.
type Stream struct {
	Path        string
	Record      []byte   // as the corpus writes it
	Differences []string // against the expectation in the file; empty where it has none
}

// ParseStream parses one recorded stream in the corpus format.
func ParseStream(ctx context.Context, path string) (Stream, error) {
	rec, err := stopwatch.ParseFile(ctx, path)
	if err != nil && ctx.Err() != nil {
		return Stream{}, &Error{Cause: CauseInterrupted, Err: err}
	}
	if err != nil {
		return Stream{}, &Error{Cause: CauseUsage, Err: err}
	}
	out := Stream{Path: path}
	if out.Record, err = rec.JSON(); err != nil {
		return out, err
	}
	out.Differences, err = rec.Differences()
	return out, err
}

// Inspection is what the files of an artifact really hold, and the details beside it.
type Inspection struct {
	Manifest matrix.Manifest  `json:"manifest"`
	Report   *artifact.Report `json:"report"`
}

// Inspect reads an artifact: a path, or hf:ORG/NAME@REVISION in the Hugging Face cache. headers leaves hashing out,
// rehash takes no hash from an earlier time.
func (s *Service) Inspect(ctx context.Context, locator string, headers, rehash bool) (Inspection, error) {
	loc, err := artifact.ParseLocator(locator)
	if err != nil {
		return Inspection{}, &Error{Cause: CauseUsage, Err: err}
	}
	opt := artifact.Options{HubDir: artifact.HubDir(s.getenv), HeadersOnly: headers, Pause: pauseOf(ctx), Rehash: rehash}
	if opt.Sums, err = s.sums(); err != nil {
		return Inspection{}, err
	}
	m, r, err := artifact.Open(ctx, loc, opt)
	if err != nil {
		if ctx.Err() != nil {
			return Inspection{}, &Error{Cause: CauseInterrupted, Err: err}
		}
		return Inspection{}, &Error{Cause: CauseUsage, Err: err}
	}
	return Inspection{Manifest: m, Report: r}, opt.Sums.Save()
}
