package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/host"
	"enginebroker/engines/process"
	"enginebroker/matrix"
	"enginebroker/matrix/box"
	"enginebroker/matrix/ledger"
	"enginebroker/matrix/run"
	"enginebroker/matrix/stopwatch"
	"enginebroker/matrix/workload"
)

// The types here fit the rooms of matrix to the small interfaces that matrix/run declares. They hold no logic.

type client struct{ *stopwatch.Client }

func (c client) Run(ctx context.Context, j stopwatch.Job) (run.Recording, error) {
	r, err := c.Client.Run(ctx, j)
	if err != nil {
		return nil, err
	}
	return &recording{Recording: r}, nil
}

// recording reduces once: its cost is measured against the reduced requests.
type recording struct {
	*stopwatch.Recording
	requests []matrix.Request
}

func (r *recording) Write(w io.Writer) error {
	_, err := r.WriteTo(w)
	return err
}

func (r *recording) Reduce(d matrix.Dialect, p matrix.Point) []matrix.Request {
	r.requests = stopwatch.Reduce(r.Recording, d, p)
	return r.requests
}

func (r *recording) Window() (int64, int64)  { return r.Start, r.End }
func (r *recording) Cost() matrix.ClientCost { return r.Recording.Cost(r.requests) }

type prompts struct{ *workload.Corpus }

func (p prompts) Take(block int, point matrix.Point, rep, n int) ([]stopwatch.Prompt, error) {
	list, err := p.Corpus.Take(block, point.ID, rep, n)
	if err != nil {
		return nil, err
	}
	out := make([]stopwatch.Prompt, len(list))
	for i, x := range list {
		out[i] = stopwatch.Prompt{ID: x.ID, Text: x.Text, IDs: x.IDs}
		if n, ok := x.Tokens.Get(); ok {
			out[i].Tokens = matrix.Some(int64(n))
		}
	}
	return out, nil
}

// boxOf is the box with what makes it unfit to certify anything, empty where it is fit.
type boxOf struct {
	*box.Box
	uncertified string
}

func (b boxOf) Settle(ctx context.Context) (matrix.Env, error) {
	env, err := b.Box.Settle(ctx)
	if b.uncertified != "" {
		env.Unevaluable = append(env.Unevaluable, b.uncertified)
	}
	return env, err
}

func (b boxOf) Watch(ctx context.Context, tree func() []int, stop func(string)) (run.Watch, error) {
	return b.Box.Watch(ctx, tree, stop)
}

// recorder writes into a run's ledger and adds the tail of the engine's log to every leg.
type recorder struct{ *ledger.Run }

// tailBytes bounds the part of an engine's log that a leg keeps; root causes stand well before the last line (engines.md C1).
const tailBytes = 64 << 10

func (r recorder) PutLeg(rec matrix.LegRecord, files ledger.LegFiles) error {
	if path := r.LogPath(rec.LoadID); exists(path) {
		files.LogTail = func(w io.Writer) error { return tail(w, path) }
	}
	return r.Run.PutLeg(rec, files)
}

func (r recorder) LogPath(loadID string) string {
	dir := filepath.Join(r.Dir(), "logs")
	// An unwritable run directory is reported by the first record that cannot be written.
	_ = os.MkdirAll(dir, 0o755)
	return filepath.Join(dir, loadID+".log")
}

// survivor is an engine whose plugin may die under it. What became of the server is then looked up by the plugin's own record
// of it.
type survivor struct {
	*host.Instance
	state string
}

func (e survivor) Observe(ctx context.Context) (matrix.State, error) {
	s, err := e.Instance.Observe(ctx)
	if errors.Is(err, engines.ErrGone) {
		err = fmt.Errorf("%w: %w", run.ErrPluginGone, err)
	}
	return s, err
}

func (e survivor) Stop(ctx context.Context, limit time.Duration) (matrix.Stopped, error) {
	s, err := e.Instance.Stop(ctx, limit)
	if errors.Is(err, engines.ErrGone) {
		return process.Local{}.Recover(ctx, e.state, limit)
	}
	return s, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func tail(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.NewSectionReader(f, max(0, st.Size()-tailBytes), tailBytes))
	return err
}
