// Package adapter is what the adapters of HTTP engines have in common: the life of one server from its settings to the
// proof that it is gone.
//
// Its stance: an engine differs in what it is called with, what it says of itself and how it lies; it does not differ in
// what a start owes. So an adapter is a table of data and two functions, and a Session of three methods; the order of a
// start, the state under the locks, attaching, preflight and stopping are here, once.
//
// The way of a start:
//
//  1. Prepare (the adapter's)   → everything that can be checked before a launch; argv, environment, weight files
//  2. process.Slot              → launch, follow the log, explain a failure by the adapter's Causes
//  3. openai.Ready              → a token of the right model; the weights are watched meanwhile where a loader closes them
//  4. Session.Accept            → read back, compare with the request, prove that no prompt is cached; facts and dialect
//  5. fingerprint               → what runs: mappings, packages, proof of the weights, and the print of the arm
//
// The rest of the room are parts that more than one adapter needs: settings and arguments that would make the arm another
// one (Rules), flags that a build must know (Build), Python environments (Place), checkpoints, the probe of the cache.
//
// To write an adapter, read plugins/vllm beside this.
package adapter

import (
	"context"
	"errors"
	"strings"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// Adapter says what one engine does differently from the others.
type Adapter struct {
	Kind         string // of the engine: vllm
	Rules        Rules  // of the settings; the schema holds at least extra_args, waive, env, ready_timeout and attach
	Capabilities []matrix.Capability
	Refuses      []matrix.Statement
	Causes       []process.Cause  // of a failed start
	Ready        openai.Readiness // Gate, Extra, Echoes and PerCall of the first generation
	// Streams says that the loader reads the weights and closes them, so that they are proved while it does. Otherwise they
	// stay mapped and are looked for whenever the server is asked.
	Streams bool
	Exact   map[string]any // body fields of a preflight's request: no early end, and the ids where the engine gives them
	// Images are the commands that start the server in an image: the first where the entrypoint is something else, the others
	// to know an entrypoint by. The schema holds process.ContainerSettings. Nil: from an installation only.
	Images [][]string
	// Inside adds to the description of an image what only its inside tells; nil: nothing.
	Inside func(ctx context.Context, image *process.Container, d *matrix.Description) error
	Made   []string // facts that say what the engine made of the file; a name ending in a dot takes those below it

	// Describe says what is on disk, in milliseconds. Description comes with Kind, Capabilities, Refuses and the schema;
	// Identity and Installed are to be set. A *NotInstalled is an answer and becomes LookedFor. Not called when attached.
	Describe func(ctx context.Context, v openai.Values, sum fingerprint.Sum, d *matrix.Description) error
	// Prepare checks what can be checked before a launch and sets Argv, Env, Links, Launch, Weights and Notes of the server,
	// or nothing when it is attached. The error is a *matrix.StartFailure or a *NotInstalled where it has a type.
	Prepare func(ctx context.Context, v openai.Values, s *Server) (Session, error)
}

// Session asks one running server. Its methods may be called from several goroutines.
type Session interface {
	// Accept is called once, after the first token. It reads back what was started, compares it with the request, and shows
	// that no prompt is cached; of an attached server it only reads. A *matrix.StartFailure is kept as it is.
	Accept(ctx context.Context, first openai.Completion) (Accepted, error)
	// Observe sets Alive and the counters of the state, and returns what the server says of itself now. Processes is set
	// already; a server that is not alive is no error.
	Observe(ctx context.Context, st *matrix.State) (matrix.Facts, error)
	// Tokenize returns the engine's ids of a text, without the tokens it adds to a prompt, or engines.ErrUnsupported.
	Tokenize(ctx context.Context, text string) ([]int, error)
}

// Accepted is what a server granted and says of itself after its start.
type Accepted struct {
	Facts   matrix.Facts // the same as those of Observe, the notes of the server among them
	Granted matrix.Limits
	Dialect matrix.Dialect
	Backend string // the fact "backend" must have this value; empty: any
}

// Server is one server, started here or by somebody else.
type Server struct {
	Client  *openai.Client
	Request matrix.StartRequest
	Sum     fingerprint.Sum // cached

	Image   *process.Container // the engine comes from; nil: from an installation. Argv are then the server's arguments
	Argv    []string
	Env     map[string]string // beside the inherited allow-list
	Links   map[string]string // process.Spec.Links
	Launch  string            // path of the engine's program, for the chain of links to what runs
	Weights []string          // files, absolute
	Notes   matrix.Facts      // of the start, which asking again does not renew

	attached bool
	tree     process.Tree // nil until launched, and when attached
	pids     func() ([]matrix.Process, error)
	proof    fingerprint.Proof // the best one seen during the load, of an engine that Streams
}

// Attached says that somebody else runs the server.
func (s *Server) Attached() bool { return s.attached }

// Done is closed once the server's root process is gone; nil when attached.
func (s *Server) Done() <-chan struct{} {
	if s.tree == nil {
		return nil
	}
	return s.tree.Done()
}

// LogTail returns the last lines of the server's log; none when attached.
func (s *Server) LogTail(lines int) ([]string, error) {
	if s.tree == nil {
		return nil, nil
	}
	return s.tree.LogTail(lines)
}

// NotInstalled says that there is no engine where it was looked for, or none that runs.
type NotInstalled struct {
	Err    error
	Looked []string // in order
	Fix    string
}

func (e *NotInstalled) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NotInstalled) Unwrap() error { return e.Err }

// launchFailure types what went wrong before the launch.
func launchFailure(err error) error {
	if _, ok := errors.AsType[*matrix.StartFailure](err); ok {
		return err
	}
	f := &matrix.StartFailure{Code: process.CodeLaunch, Phase: "launch", Message: err.Error()}
	if x, ok := errors.AsType[*NotInstalled](err); ok {
		f.Code, f.Fix = "not_installed", x.Fix
		if len(x.Looked) > 0 {
			f.Message += "; looked for " + strings.Join(x.Looked, ", ")
		}
	} else if errors.Is(err, context.Canceled) {
		f.Code = process.CodeCancelled
	}
	return f
}
