package process

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// Slot holds the one server an engine instance may run, for calls that come in any order from several goroutines. Its
// zero value is empty.
type Slot struct {
	mu     sync.Mutex
	tree   Tree
	cancel context.CancelFunc // of a start under way
	ended  chan struct{}      // closed when that start returned
}

// Start is Launch, refused while a server of the slot runs or starts. A Stop meanwhile cancels it.
func (s *Slot) Start(ctx context.Context, st Start) (Tree, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.tree != nil || s.cancel != nil {
		s.mu.Unlock()
		return nil, &matrix.StartFailure{Code: CodeBusy, Phase: "launch", Message: "this instance runs a server already", Fix: "stop it first"}
	}
	ended := make(chan struct{})
	s.cancel, s.ended = cancel, ended
	s.mu.Unlock()
	t, err := Launch(ctx, st)
	// What reading logs, answers and mappings took is given back before timed windows open (a plugin may hold 20 MiB there).
	debug.FreeOSMemory()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree, s.cancel = t, nil
	close(ended)
	return t, err
}

// Tree is the running server, or engines.ErrNotStarted.
func (s *Slot) Tree() (Tree, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tree == nil {
		return nil, engines.ErrNotStarted
	}
	return s.tree, nil
}

// Stop ends the server and empties the slot once it is proved gone. A start under way is cancelled and cleans up after
// itself; then, as with an empty slot, the answer is engines.ErrNotStarted.
func (s *Slot) Stop(ctx context.Context, deadline time.Duration) (matrix.Stopped, error) {
	s.mu.Lock()
	if s.cancel != nil {
		s.cancel()
		ended := s.ended
		s.mu.Unlock()
		<-ended
		s.mu.Lock()
	}
	t := s.tree
	s.mu.Unlock()
	if t == nil {
		return matrix.Stopped{}, engines.ErrNotStarted
	}
	stopped, err := t.Stop(ctx, deadline)
	if stopped.Gone() {
		s.mu.Lock()
		if s.tree == t {
			s.tree = nil
		}
		s.mu.Unlock()
	}
	return stopped, err
}
