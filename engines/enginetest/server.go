package enginetest

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"enginebroker/engines"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

var phases = map[string]bool{"launch": true, "load": true, "listen": true, "generate": true, "ready": true}

// lives takes one instance through two server lifetimes.
func lives(b *bench) {
	first, ok := b.started()
	if !ok {
		return
	}
	b.observes(first)
	b.tokenizes()
	if !b.stops(first) {
		return
	}
	b.notStarted("after Stop")
	second, ok := b.started()
	if !ok {
		return
	}
	if second.Print != first.Print {
		b.fail("two starts of one build and request have two prints: %s, %s", first.Print, second.Print)
	}
	b.stops(second)
}

func (b *bench) started() (matrix.Ready, bool) {
	r := b.request()
	var mu sync.Mutex
	var progress []matrix.Progress
	ready, err := b.engine.Start(b.ctx, r, func(p matrix.Progress) {
		mu.Lock()
		defer mu.Unlock()
		progress = append(progress, p)
	})
	if err != nil {
		return ready, b.fail("Start: %v", err)
	}
	if len(progress) == 0 {
		b.fail("Start reported no progress")
	}
	for _, p := range progress {
		if !phases[p.Phase] {
			b.fail("progress has the unknown phase %q", p.Phase)
		}
	}
	b.dialect(ready.Dialect, r)
	b.facts("Ready.Facts", ready.Facts)
	for _, name := range []string{matrix.FactEngine, matrix.FactVersion, matrix.FactPrefixCache, matrix.FactSpeculation} {
		if _, ok := ready.Facts.Get(name); !ok {
			b.fail("Ready has no fact %s", name)
		}
	}
	if ready.FirstToken <= 0 {
		b.fail("Ready without the time of a first token: ready means it generated one")
	}
	if len(ready.Argv) == 0 || ready.Print == "" || ready.LogPath == "" {
		b.fail("Ready lacks command line, print or log path: %v, %q, %q", ready.Argv, ready.Print, ready.LogPath)
	}
	if g := ready.Granted.ContextTokens; g != 0 && g < r.Limits.ContextTokens {
		b.fail("asked for %d tokens of context, granted %d, and started all the same", r.Limits.ContextTokens, g)
	}
	if len(ready.Processes) == 0 {
		b.fail("Ready names no process")
	}
	for _, p := range ready.Processes {
		if p.PID == 0 || p.StartTime == 0 || p.BootID == "" || !alive(p) {
			b.fail("process %+v is not one that runs, named by pid, start time and boot", p)
		}
	}
	b.secrets("Ready", ready)
	b.secrets("progress", progress)
	b.secrets("Ready.Dialect.Body", ready.Dialect.Body)
	return ready, true
}

// dialect checks that the timed client knows everything it must.
func (b *bench) dialect(d matrix.Dialect, r matrix.StartRequest) {
	for name, v := range map[string]string{"base_url": d.BaseURL, "path": d.Path, "form": d.Form, "model": d.Model, "prompt_form": d.PromptForm,
		"max_tokens_field": d.MaxTokensField, "end": d.End, "usage": d.Usage, "liveness": d.Liveness.Kind} {
		if v == "" {
			b.fail("the dialect lacks %s", name)
		}
	}
	if len(d.Sources) == 0 {
		b.fail("the dialect has no source of token counts")
	}
	for _, s := range d.Sources {
		if s.Name == "" || s.Kind == "" {
			b.fail("the dialect has a token source without name or kind: %+v", s)
		}
	}
	if d.ContextTokens < r.Limits.ContextTokens {
		b.fail("the dialect's context is %d tokens, asked were %d", d.ContextTokens, r.Limits.ContextTokens)
	}
	u, err := url.Parse(d.BaseURL)
	if err != nil || !listening(u.Host) {
		b.fail("nothing listens at %s (%v)", d.BaseURL, err)
	}
}

func (b *bench) observes(ready matrix.Ready) {
	s, err := b.engine.Observe(b.ctx)
	if err != nil {
		b.fail("Observe: %v", err)
		return
	}
	b.facts("State.Facts", s.Facts)
	b.secrets("State", s)
	if !s.Alive || s.Print != ready.Print || s.Exit.Present() {
		b.fail("Observe of a fresh server: alive %t, print %q (Ready: %q), exit %v", s.Alive, s.Print, ready.Print, s.Exit)
	}
}

func (b *bench) tokenizes() {
	const text = "The quick brown fox — naïve 東京\n"
	ids, err := b.engine.Tokenize(b.ctx, text)
	if errors.Is(err, engines.ErrUnsupported) {
		return
	}
	again, err2 := b.engine.Tokenize(b.ctx, text)
	if err != nil || err2 != nil || len(ids) == 0 || !reflect.DeepEqual(ids, again) {
		b.fail("Tokenize twice: %v, %v, then %v, %v", ids, err, again, err2)
	}
}

// stops checks the proof of absence against the process table and the port.
func (b *bench) stops(ready matrix.Ready) bool {
	stopped, err := b.engine.Stop(b.ctx, b.config.StopDeadline)
	if err != nil {
		return b.fail("Stop: %v", err)
	}
	if !stopped.Gone() || stopped.How == "" {
		b.fail("Stop: %+v", stopped)
	}
	for _, p := range ready.Processes {
		if alive(p) {
			b.fail("process %d survives Stop", p.PID)
		}
	}
	if u, err := url.Parse(ready.Dialect.BaseURL); err != nil || listening(u.Host) {
		b.fail("something listens at %s after Stop", ready.Dialect.BaseURL)
	}
	return true
}

func refusesSecond(b *bench) {
	ready, ok := b.started()
	if !ok {
		return
	}
	if _, err := b.engine.Start(b.ctx, b.request(), nil); err == nil {
		b.fail("an instance started a second server")
	}
	if s, err := b.engine.Observe(b.ctx); err != nil || !s.Alive {
		b.fail("the first server after a second start was refused: %+v, %v", s, err)
	}
	b.stops(ready)
}

func refusesTakenPort(b *bench) {
	r := b.request()
	l, err := net.Listen("tcp", net.JoinHostPort(r.Host, strconv.Itoa(r.Port)))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	_, err = b.engine.Start(b.ctx, r, nil)
	f, ok := errors.AsType[*matrix.StartFailure](err)
	if !ok || f.Code != "port_taken" {
		b.fail("Start on a taken port: %v, want a StartFailure port_taken", err)
	}
	b.notStarted("after a failed start")
}

// cancels ends a start at its first sign of life.
func cancels(b *bench) {
	r := b.request()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	ready, err := b.engine.Start(ctx, r, func(matrix.Progress) { cancel() })
	if err == nil { // the answer was on its way already
		b.stops(ready)
		return
	}
	b.starts.Wait()
	b.notStarted("after a cancelled start")
	if err := process.CheckPortFree(r.Host, r.Port); err != nil {
		b.fail("a cancelled start leaves its port taken: %v", err)
	}
	if again, ok := b.started(); ok {
		b.stops(again)
	}
}

func preflights(b *bench) {
	r := b.request()
	p, err := b.engine.Preflight(b.ctx, r, nil)
	if errors.Is(err, engines.ErrUnsupported) {
		return
	}
	if err != nil {
		b.fail("Preflight: %v", err)
		return
	}
	if p.Text == "" && len(p.IDs) == 0 {
		b.fail("Preflight is a proof without an answer")
	}
	if !p.Stopped.Gone() {
		b.fail("Preflight leaves its server: %+v", p.Stopped)
	}
	b.facts("PreflightResult.Made", p.Made)
	b.secrets("PreflightResult", p)
	b.notStarted("after Preflight")
}

// alive reports whether exactly this process runs: its number and its start time.
func alive(p matrix.Process) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // from field 3
	return len(fields) > 19 && fields[0] != "Z" && fields[19] == strconv.FormatUint(p.StartTime, 10)
}

func listening(host string) bool {
	c, err := net.Dial("tcp", host)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
