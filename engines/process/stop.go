package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"enginebroker/matrix"
)

// stopper ends one tree. It asks the root alone first: the root of an engine knows its workers, and workers that are
// signalled beside it report their end as failures.
type stopper struct {
	members  func() ([]matrix.Process, error)
	root     matrix.Process
	port     int
	signaled func(unix.Signal) // called before a signal is sent
}

// killReserve is the part of a stop deadline that is kept for SIGKILL and the proof, at most half of it.
const killReserve = 2 * time.Second

// stop returns when the tree is gone and the port is free, or at the deadline with what is left. A cancelled ctx shortens
// the polite part, never the kill: nothing may stay behind because somebody is in a hurry.
func (s stopper) stop(ctx context.Context, until time.Time) (matrix.Stopped, error) {
	result := matrix.Stopped{How: "gone_before"}
	live, err := s.members()
	if err != nil {
		return result, err
	}
	polite := until.Add(-min(killReserve, time.Until(until)/2))
	if len(live) > 0 {
		result.How = "term"
		s.signaled(unix.SIGTERM)
		target := live // the root is gone: ask whoever is left
		if live[0].PID == s.root.PID {
			target = live[:1]
		}
		for _, p := range target {
			err = errors.Join(err, signal(p, unix.SIGTERM))
		}
		live = s.wait(ctx, polite, func(live []matrix.Process) bool { return len(live) == 0 || live[0].PID != s.root.PID })
	}
	if len(live) > 0 && live[0].PID != s.root.PID {
		// The root went and left these. They get a moment of their own, within the polite part.
		for _, p := range live {
			err = errors.Join(err, signal(p, unix.SIGTERM))
		}
		live = s.wait(ctx, polite, func(live []matrix.Process) bool { return len(live) == 0 })
	}
	for first := true; len(live) > 0 && (first || time.Now().Before(until)); first = false {
		result.How = "kill"
		s.signaled(unix.SIGKILL)
		for _, p := range live {
			err = errors.Join(err, signal(p, unix.SIGKILL))
		}
		round := time.Now().Add(5 * pollEvery) // a process that forks while being killed is met in the next round
		live = s.wait(context.WithoutCancel(ctx), round, func(live []matrix.Process) bool { return len(live) == 0 })
	}
	result.Survivors = live
	for result.PortFree = s.portFree(); !result.PortFree && len(live) == 0 && time.Now().Before(until); result.PortFree = s.portFree() {
		time.Sleep(pollEvery)
	}
	if result.Gone() {
		err = nil // signals that could not be sent no longer matter
	}
	return result, err
}

// wait polls the tree until done says so, the time is over or ctx ends, and returns what lives then.
func (s stopper) wait(ctx context.Context, until time.Time, done func([]matrix.Process) bool) []matrix.Process {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		live, err := s.members()
		if err == nil && done(live) || !time.Now().Before(until) || ctx.Err() != nil {
			return live
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// portFree reports whether nobody listens on the port. Port 0 is a tree without a port.
func (s stopper) portFree() bool {
	if s.port == 0 {
		return true
	}
	ls, err := Listeners(s.port)
	return err == nil && len(ls) == 0
}

// Recover stops what an earlier start left.
func (Local) Recover(ctx context.Context, statePath string, deadline time.Duration) (matrix.Stopped, error) {
	none := matrix.Stopped{How: "gone_before", PortFree: true}
	st, err := ReadState(statePath)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return matrix.Stopped{}, err
	}
	if len(st.Tool) > 0 { // left by a container; its carcass outlives even a reboot
		return recoverContainer(ctx, st, statePath, deadline)
	}
	boot, err := BootID()
	if err != nil {
		return matrix.Stopped{}, err
	}
	if st.BootID != boot { // no process survives a reboot
		return none, errors.Join(st.removeDir(), removeState(statePath))
	}
	t := newTree(st.LoadID, st.Root.Or(matrix.Process{BootID: boot}))
	start := time.Now()
	result, err := stopper{members: func() ([]matrix.Process, error) {
		live, _, err := t.members()
		return live, err
	}, root: t.root, port: 0, signaled: func(unix.Signal) {}}.stop(ctx, start.Add(deadline))
	result.Took = time.Since(start)
	if !result.Gone() {
		return result, errors.Join(err, fmt.Errorf("%s: %d processes of load %s are still alive, first pid %s: end them by hand", statePath, len(result.Survivors), st.LoadID, pidOf(result.Survivors)))
	}
	return result, errors.Join(err, st.removeDir(), removeState(statePath))
}

func pidOf(ps []matrix.Process) string {
	if len(ps) == 0 {
		return "unknown"
	}
	return strconv.Itoa(ps[0].PID)
}

func itoa(n int) string { return strconv.Itoa(n) }

func signalName(sig unix.Signal) string { return unix.SignalName(sig) }
