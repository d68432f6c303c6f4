package adapter

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/process"
	"enginebroker/matrix"
)

// Seen is a fact that was observed: read from what runs, or counted.
func Seen(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Observed}
}

// Said is a fact that is only claimed: by a version string, a package, or what was asked for.
func Said(name, value, where string) matrix.Fact {
	return matrix.Fact{Name: name, Value: value, Where: where, Standing: matrix.Claimed}
}

// WaivedFacts are the facts of flags that a build lacks and that were waived; help is the command that lists its flags.
func WaivedFacts(waived []string, help string) matrix.Facts {
	var facts matrix.Facts
	for _, name := range waived {
		facts = append(facts, Said(fingerprint.FactConfig+"waived."+name, "not known to this build", help))
	}
	return facts
}

// identity completes what a server says with what is read from its processes.
func (i *Instance) identity(ctx context.Context, run *running, said matrix.Facts, tree []matrix.Process) (matrix.Facts, string, error) {
	facts := slices.Clone(said)
	if len(tree) > 0 {
		print, err := i.fingerprint(ctx, run, tree)
		if err != nil {
			return nil, "", err
		}
		facts = append(facts, print...)
	}
	if run.tree != nil {
		outside, err := process.ContainerFacts(ctx, run.tree)
		if err != nil {
			return nil, "", err
		}
		facts = append(facts, outside...)
		if len(tree) > 0 {
			cpus, err := process.CPUs(tree[0].PID)
			if err != nil {
				return nil, "", err
			}
			facts = append(facts, Seen(fingerprint.FactConfig+"cpus", cpus, "sched_getaffinity(2) of the server's first process"))
		}
	}
	switch {
	case len(run.Weights) == 0:
	case i.adapter.Streams:
		facts = append(facts, run.proof.Fact())
	case len(tree) > 0:
		proof, err := fingerprint.Weights("", numbers(tree), run.Weights)
		if err != nil {
			return nil, "", err
		}
		facts = append(facts, proof.Fact())
	}
	print, err := fingerprint.ArmPrint(facts)
	return facts, print, err
}

// fingerprint reads the processes. A helper that ends while it is read is tried once more, without it.
func (i *Instance) fingerprint(ctx context.Context, run *running, tree []matrix.Process) (matrix.Facts, error) {
	opt := fingerprint.Options{PIDs: numbers(tree), Launch: run.Launch, Sum: i.sums.Sum, Private: run.Request.CacheDir}
	print, err := fingerprint.Of(ctx, opt)
	if errors.Is(err, fs.ErrNotExist) {
		if tree, err = run.pids(); err != nil {
			return nil, err
		}
		opt.PIDs = numbers(tree)
		print, err = fingerprint.Of(ctx, opt)
	}
	return print.Facts, err
}

func numbers(tree []matrix.Process) []int {
	pids := make([]int, len(tree))
	for i, p := range tree {
		pids[i] = p.PID
	}
	return pids
}

// watchWeights looks for proof of the weights while they load, and the returned function stops and gives the best: loaders
// that read and close leave no trace later.
func watchWeights(ctx context.Context, pids func() ([]matrix.Process, error), files []string) func() fingerprint.Proof {
	ctx, cancel := context.WithCancel(ctx)
	best := fingerprint.Proof{Rung: fingerprint.RungNone, Detail: "not seen"}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			// A process that ends meanwhile, or that cannot be read yet, is no news about the weights.
			if tree, err := pids(); err == nil {
				if p, err := fingerprint.Weights("", numbers(tree), files); err == nil {
					best = best.Better(p)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() fingerprint.Proof {
		cancel()
		wg.Wait()
		return best
	}
}

// Halted reports a process of the tree that was stopped by a signal: it answers nothing until somebody lets it go on, while
// other processes of the tree may still answer 200.
func Halted(tree []matrix.Process) bool {
	return slices.ContainsFunc(tree, func(p matrix.Process) bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
		if err != nil {
			return false // gone meanwhile
		}
		// The name before the state may hold spaces and brackets (proc_pid_stat(5)).
		i := strings.LastIndexByte(string(b), ')')
		return i > 0 && len(b) > i+2 && (b[i+2] == 'T' || b[i+2] == 't')
	})
}

// pick returns the facts of these names; a name ending in a dot takes those below it.
func pick(facts matrix.Facts, names []string) matrix.Facts {
	var out matrix.Facts
	for _, f := range facts {
		if slices.ContainsFunc(names, func(n string) bool { return f.Name == n || strings.HasSuffix(n, ".") && strings.HasPrefix(f.Name, n) }) {
			out = append(out, f)
		}
	}
	return out
}

// Logged is a fact that stands in an engine's log and nowhere else: Pattern's groups, joined, are its value.
type Logged struct {
	Name    string
	Pattern *regexp.Regexp
}

// LogFacts reads facts from the lines of a load's log, each value once, in the order of the patterns.
func LogFacts(patterns []Logged, log []string) matrix.Facts {
	var facts matrix.Facts
	had := map[string]bool{}
	for _, k := range patterns {
		for _, l := range log {
			m := k.Pattern.FindStringSubmatch(l)
			if m == nil {
				continue
			}
			value := strings.Join(m[1:], "") // one of the alternatives
			if !had[k.Name+value] {
				had[k.Name+value] = true
				facts = append(facts, Seen(k.Name, value, "server log"))
			}
		}
	}
	return facts
}
