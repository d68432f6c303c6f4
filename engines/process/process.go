// Package process runs one server tree and proves it gone.
//
// Its stance: a server is a tree, not a process. Workers reparent, rename themselves and outlive their parents, so a
// tree is followed by everything that ties a process to it (descent, session, process group, the load's marker in its
// environment) and a process is never named by its number alone, but by boot, number and start time. Nothing is believed
// stopped until the process table, read again, holds none of it and nobody listens on its port.
//
// The way of one load:
//
//  1. Recover stops exactly what an earlier start left behind under the same state file
//  2. the port must be free, whoever would hold it
//  3. Runtime.Start launches the tree: own session, clean environment, empty directory, its output in a bounded file,
//     dead with its parent; the state file is written before and completed after
//  4. the adapter's ready function returns once a token of the right model was generated
//  5. every socket that listens on the port must belong to the tree: a twin that shares the port is found here
//  6. Tree.Stop ends it: SIGTERM, deadline, SIGKILL, proof
//
// Launch walks steps 1 to 5 and turns whatever goes wrong into one matrix.StartFailure with nothing left running.
package process

import (
	"context"
	"slices"
	"syscall"
	"time"

	"enginebroker/matrix"
)

// MarkerName is the environment variable that marks every process of a load; its value is Spec.LoadID.
const MarkerName = "BROKER_LOAD_ID"

// Spec is one server to launch. Paths are absolute.
type Spec struct {
	LoadID    string            // unique per load; marks the tree
	Argv      []string          // the executable's path first
	Env       map[string]string // declared variables; they win over inherited ones
	Inherit   []string          // names inherited beside DefaultInherit; a trailing * matches a prefix
	SpareCPUs int               // CPUs that the tree must not run on, counted from the first that this process may use; Local alone keeps it
	Links     map[string]string // symbolic links in the otherwise empty working directory: target by name
	Host      string            // the address the server will listen on
	Port      int               // the port it was told to use
	LogPath   string            // receives stdout and stderr; a rotated part is LogPath.1
	LogLimit  int64             // bytes on disk before rotation; 0: DefaultLogLimit
	StatePath string            // names the tree for a later start; empty: none is written
}

// DefaultLogLimit is the size at which a log is rotated: enough for the full log of any real load, small against a disk.
const DefaultLogLimit = 64 << 20

// Runtime is a way to run a server: as a process of this machine (Local), or in a container. What a container needs beyond
// Spec (image, mounts) belongs to the value that implements it. An attached server has no runtime.
type Runtime interface {
	Kind() matrix.Runtime
	// Start launches the tree and returns at once; the server is not ready yet. Cancelling ctx later does not stop it. A
	// state file that is there already is refused: Recover comes first.
	Start(ctx context.Context, s Spec) (Tree, error)
	// Recover stops what an earlier start left under this state file and proves it gone. No file means nothing to do.
	Recover(ctx context.Context, statePath string, deadline time.Duration) (matrix.Stopped, error)
}

// Tree is one running server tree.
type Tree interface {
	Launched() Launched
	// Processes lists the live processes of the tree, root first.
	Processes() ([]matrix.Process, error)
	// Done is closed once the root process is gone and its exit is known.
	Done() <-chan struct{}
	// Exit says how the root ended; absent while it runs.
	Exit() matrix.Opt[Exit]
	// LogTail returns the last n lines of the log, over a rotation.
	LogTail(n int) ([]string, error)
	// Foreign lists who listens on the port without belonging to the tree. Empty is the proof that the tree alone answers.
	Foreign() ([]Listener, error)
	// Stop ends the tree and proves it gone; it is safe to call twice. What survives is in the result, not in the error.
	Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error)
}

// Launched is what a runtime really started.
type Launched struct {
	Argv     []string          // as executed, secrets included: scrub before recording
	Env      map[string]string // as executed, secrets included
	Scrubbed []string          // names of variables of this environment that would have changed the server and were withheld
	Root     matrix.Process
	Start    time.Time // with a monotonic reading: for durations only
	LogPath  string
}

// Exit says how a process ended.
type Exit struct {
	Code   int            // exit code; 128+n for signal n
	Signal syscall.Signal // 0 when it exited by itself
	ByUs   bool           // Stop had sent this signal
	OOM    bool           // its cgroup counted an OOM kill while it ran
}

// crashed reports a signal that a program brings on itself: no one killed it.
func (e Exit) crashed() bool {
	return slices.Contains([]syscall.Signal{syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS}, e.Signal)
}

func (e Exit) String() string {
	switch {
	case e.Signal == 0:
		return "exit code " + itoa(e.Code)
	case e.crashed():
		return signalName(e.Signal) + ", it crashed"
	case e.ByUs:
		return signalName(e.Signal) + ", sent by us"
	case e.OOM && e.Signal == syscall.SIGKILL:
		return "SIGKILL, killed by its cgroup limit (memory.events counts an oom_kill)"
	default:
		// Exit code 137 alone says nothing about memory: a kill has many possible senders.
		return signalName(e.Signal) + ", sender unknown"
	}
}
