package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"enginebroker/engines"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
	"enginebroker/plugins/simulated/server"
)

// Engine is one instance of the simulated engine.
type Engine struct {
	runtime process.Runtime

	mu       sync.Mutex
	config   server.Config
	settings engines.Settings // of the server
	image    *process.Container
	tree     process.Tree
	client   *openai.Client
	loads    int // so far; the instance's drift counts them
}

// New returns an instance that is not configured.
func New() *Engine { return &Engine{runtime: process.Local{}, config: server.Default()} }

// Describe answers from the settings; the engine is always installed, because it is this binary.
func (e *Engine) Describe(ctx context.Context) (matrix.Description, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := matrix.Description{Engine: "simulated", Installed: true, Simulated: true}
	exe, build, err := binary()
	if err != nil {
		return d, err
	}
	claim := func(name, value, where string) {
		d.Identity = append(d.Identity, matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Claimed})
	}
	claim(matrix.FactEngine, "simulated", "the plugin")
	claim(matrix.FactVersion, e.config.StampedVersion(), "settings")
	if e.config.Commit != "" {
		claim(matrix.FactCommit, e.config.Commit, "settings")
	}
	if e.image != nil {
		facts, err := e.image.Installed(ctx)
		if err != nil {
			d.Installed, d.LookedFor = false, []string{err.Error()}
			return d, nil
		}
		d.Identity = append(d.Identity, facts...)
		exe, build = "/simulated in "+e.image.Image, facts.Value(matrix.FactImage).Or("")
	}
	claim(matrix.FactBinary, exe, "where the server is started from")
	claim(matrix.FactBuild, buildPrint(build, e.config), "sha256 of the binary or image, dialect, version and commit")
	for _, o := range e.config.Opens {
		container, quant, _ := strings.Cut(o, "/")
		d.Capabilities = append(d.Capabilities, matrix.Capability{Container: container, Quantization: quant,
			Statement: matrix.Statement{Status: matrix.StatusClaimed, Source: "setting opens of the simulated engine"}})
	}
	for _, f := range server.Fields() {
		d.Settings = append(d.Settings, f.Setting)
	}
	d.Settings = append(d.Settings, process.ContainerSettings...)
	return d, nil
}

// Configure takes the settings; those of a running server stay what they are.
func (e *Engine) Configure(_ context.Context, s engines.Settings) ([]engines.FieldError, error) {
	image, out := process.NewContainer(func(name string) string { return s[name] }, []string{"/simulated", "serve"})
	own := maps.Clone(s)
	for _, x := range process.ContainerSettings {
		delete(own, x.Name)
	}
	c, bad := server.Parse(own)
	for _, b := range bad {
		out = append(out, engines.FieldError{Field: b.Field, Message: b.Message, Fix: "see the plugin's settings"})
	}
	if len(out) > 0 {
		return out, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.config, e.settings, e.image = c, own, image
	if e.settings == nil {
		e.settings = engines.Settings{}
	}
	return nil, nil
}

// causes are the root causes that the server's log can hold.
var causes = []process.Cause{{Pattern: regexp.MustCompile(`^simulated: fatal: `)}}

// Start launches the server as a process of its own and returns once it generated a token.
func (e *Engine) Start(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.Ready, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.settings == nil {
		return matrix.Ready{}, engines.ErrNotConfigured
	}
	if e.tree != nil {
		return matrix.Ready{}, &matrix.StartFailure{Code: "launch", Phase: "launch", Message: "a server of this instance is running already", Fix: "stop it first"}
	}
	exe, _, err := binary()
	if err != nil {
		return matrix.Ready{}, err
	}
	foreign, err := e.carry()
	if err != nil {
		return matrix.Ready{}, &matrix.StartFailure{Code: "launch", Phase: "launch", Message: err.Error(), Fix: "check the setting carry_file"}
	}
	addr := net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	args := e.argv(r, addr, foreign)
	how, argv := e.runtime, append([]string{exe, "serve"}, args...)
	if e.image != nil {
		in := *e.image
		if in.Mounts, err = process.Mounts(r); err != nil {
			return matrix.Ready{}, &matrix.StartFailure{Code: "bad_artifact", Phase: "launch", Message: err.Error()}
		}
		how, argv = in, args
	}
	c := openai.New("http://"+addr, nil)
	began := time.Now()
	var first time.Duration
	tree, err := process.Launch(ctx, process.Start{
		Runtime: how, Limit: r.ReadyLimit, Causes: append(causes, process.ContainerCauses...), Progress: progress,
		Spec: process.Spec{LoadID: r.LoadID, Argv: argv, Host: r.Host, Port: r.Port,
			LogPath: r.LogPath, StatePath: r.StatePath},
		Ready: func(ctx context.Context, _ process.Tree, progress func(matrix.Progress)) error {
			_, err := openai.Ready(ctx, c, openai.Readiness{Model: r.ModelName, Prompt: "ready", Tokens: 1, Echoes: true, Progress: progress})
			first = time.Since(began)
			return err
		},
	})
	if err != nil {
		c.Close()
		return matrix.Ready{}, err
	}
	e.loads++
	e.tree, e.client = tree, c
	ready, err := e.ready(ctx, r, addr)
	if err != nil {
		return ready, e.undo(ctx, err)
	}
	ready.FirstToken, ready.LoadTime = first, first
	return ready, nil
}

// undo leaves nothing running after a start that failed late.
func (e *Engine) undo(ctx context.Context, cause error) error {
	f := &matrix.StartFailure{Code: "not_ready", Phase: "ready", Message: "the server was ready and did not say what it is: " + cause.Error()}
	stopped, err := e.stop(context.WithoutCancel(ctx), 10*time.Second)
	if err != nil || !stopped.Gone() {
		f.Message += fmt.Sprintf("; it could not be stopped: %v %v", stopped.Survivors, err)
	}
	return f
}

// argv gives the server every setting and what this load is.
func (e *Engine) argv(r matrix.StartRequest, addr string, foreign bool) []string {
	args := []string{"--addr=" + addr, "--model=" + r.ModelName, "--path=" + cmp.Or(r.Artifact.Path, r.Artifact.ID), "--load-id=" + r.LoadID,
		"--speed=" + strconv.FormatFloat(e.config.LoadSpeed(r.LoadID, e.loads, foreign), 'g', -1, 64),
		"--quantization=" + cmp.Or(r.Artifact.Quantization, "none"), "--kv-dtype=" + cmp.Or(r.Artifact.KVDtype, "auto")}
	if r.Limits.ContextTokens > 0 {
		args = append(args, "--context="+strconv.Itoa(r.Limits.ContextTokens))
	}
	if r.Limits.Concurrency > 0 {
		args = append(args, "--slots="+strconv.Itoa(r.Limits.Concurrency))
	}
	for _, f := range server.Fields() {
		v, ok := e.settings[f.Name]
		switch {
		case f.Name == "compute_dtype" && r.ComputeDtype != "":
			v, ok = r.ComputeDtype, true
		case f.Name == "tokens_per_chunk" && r.Policy.Kind == matrix.Drafted:
			v, ok = strconv.Itoa(max(e.config.ChunkTokens, r.Policy.Length)), true
		}
		if ok {
			args = append(args, "--"+f.Name+"="+v)
		}
	}
	if r.Policy.Kind == matrix.Drafted {
		args = append(args, "--speculation="+r.Policy.Drafter)
	}
	return args
}

// carry reports whether another instance ran last, and says that this one does now.
func (e *Engine) carry() (foreign bool, err error) {
	if e.config.CarryFile == "" {
		return false, nil
	}
	_, build, err := binary()
	if err != nil {
		return false, err
	}
	me := buildPrint(build, e.config)
	last, err := os.ReadFile(e.config.CarryFile)
	if err != nil && !os.IsNotExist(err) {
		return false, err
	}
	return len(last) > 0 && string(last) != me, os.WriteFile(e.config.CarryFile, []byte(me), 0o644)
}

// Observe asks the running server.
func (e *Engine) Observe(ctx context.Context) (matrix.State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tree == nil {
		return matrix.State{}, engines.ErrNotStarted
	}
	s := matrix.State{}
	var err error
	if s.Processes, err = e.tree.Processes(); err != nil {
		return s, err
	}
	if x, gone := e.tree.Exit().Get(); gone {
		s.Exit = matrix.Some(x.Code)
		return s, nil
	}
	rep, facts, err := e.facts(ctx)
	if err != nil {
		return s, err
	}
	s.Alive, s.Facts = true, facts
	s.Running, s.Generated, s.CachedTokens = matrix.Some(rep.Running), matrix.Some(rep.Generated), matrix.Some(rep.Cached)
	s.Print, err = matrix.Digest(facts)
	return s, err
}

// Tokenize asks the running server; without one, the tokenizer is the same.
func (e *Engine) Tokenize(_ context.Context, text string) ([]int, error) {
	return server.Tokenize(text), nil
}

// Stop ends the server and proves it gone.
func (e *Engine) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tree == nil {
		return matrix.Stopped{}, engines.ErrNotStarted
	}
	return e.stop(ctx, deadline)
}

func (e *Engine) stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	stopped, err := e.tree.Stop(ctx, deadline)
	if err == nil && stopped.Gone() {
		e.client.Close()
		e.tree, e.client = nil, nil
	}
	return stopped, err
}

// Preflight starts, asks one question and stops.
func (e *Engine) Preflight(ctx context.Context, r matrix.StartRequest, progress func(matrix.Progress)) (matrix.PreflightResult, error) {
	ready, err := e.Start(ctx, r, progress)
	if err != nil {
		return matrix.PreflightResult{}, err
	}
	canary := r.Artifact.Canary.Or(matrix.Canary{Prompt: "What is 19 × 23?", Tokens: 8})
	e.mu.Lock()
	answer, askErr := e.client.Complete(ctx, r.ModelName, canary.Prompt, max(canary.Tokens, 1), nil)
	e.mu.Unlock()
	res := matrix.PreflightResult{Ready: matrix.Some(ready), Text: answer.Text, IDs: answer.IDs, Made: ready.Facts}
	if res.Stopped, err = e.Stop(context.WithoutCancel(ctx), 30*time.Second); err != nil {
		return res, err
	}
	if askErr != nil {
		return res, &matrix.StartFailure{Code: "not_ready", Phase: "generate", Message: askErr.Error()}
	}
	return res, nil
}

// binary is this program and the sha256 of its file.
var binary = func() func() (string, string, error) {
	read := sync.OnceValues(func() ([2]string, error) {
		exe, err := os.Executable()
		if err == nil {
			exe, err = filepath.EvalSymlinks(exe)
		}
		if err != nil {
			return [2]string{}, err
		}
		f, err := os.Open(exe)
		if err != nil {
			return [2]string{}, err
		}
		defer f.Close()
		h := sha256.New()
		_, err = io.Copy(h, f)
		return [2]string{exe, hex.EncodeToString(h.Sum(nil))}, err
	})
	return func() (string, string, error) {
		x, err := read()
		return x[0], x[1], err
	}
}()

// buildPrint tells two builds apart that are one binary: what they claim to be is part of what they are.
func buildPrint(binary string, c server.Config) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n", binary, c.Dialect, c.Version, c.Commit)
	return hex.EncodeToString(h.Sum(nil))
}
