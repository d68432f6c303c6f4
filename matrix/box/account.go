package box

import (
	"os"
	"slices"
)

// account follows which processes are ours (the engine's tree, the broker and what they started) and how much CPU time
// they have used together, also after they have exited. What remains of the box's busy time is foreign (protocol §2.7).
//
// A process that was once ours stays ours when it is adopted by init. CPU time of a process that exits moves into its
// parent's account of reaped children where the parent waits for it; where nobody does, what was last seen of it is kept.
type account struct {
	proc procfs
	self int
	ours map[procKey]*owned
	byID map[int]procKey
	root map[int]uint64 // start times of the roots: a number that comes back is another process
	lost int64          // ticks of processes that went without being accounted to a parent
	next bool           // updated before
	scan bool           // this kernel lists no children: read all of /proc instead
}

type procKey struct {
	pid   int
	start uint64
}

type owned struct {
	parent   procKey
	depth    int   // below the broker; its children are plugins, theirs are servers
	engine   bool  // of the engine's tree
	offset   int64 // ticks used before it was ours
	last     int64 // own + children, last seen
	children int64 // reaped children, last seen
}

func newAccount(proc procfs) *account {
	self := os.Getpid()
	return &account{proc: proc, self: self, scan: !proc.listsChildren(self), ours: map[procKey]*owned{}, byID: map[int]procKey{}, root: map[int]uint64{}}
}

// update walks the processes below the broker and the roots, and returns the ticks used by all of them so far. Only
// differences of it mean anything.
func (a *account) update(roots []int) int64 {
	children := a.proc.children
	if a.scan {
		children = a.proc.scanChildren()
	}
	visited := map[procKey]pidStat{}
	var visit func(pid int, from owned, counted bool)
	visit = func(pid int, from owned, counted bool) {
		s, err := a.proc.pid(pid)
		if err != nil {
			return
		}
		k := procKey{pid, s.start}
		if _, done := visited[k]; done {
			return
		}
		visited[k] = s
		o, known := a.ours[k]
		if !known {
			o = &from
			if !counted {
				o.offset = s.own + s.children
			}
			a.ours[k] = o
		}
		// A child of a process that is ours already was born ours: all of its time counts. What appears below a plugin
		// while the watch runs is the engine that is being started, before anybody names it.
		for _, c := range children(pid) {
			visit(c, owned{parent: k, depth: o.depth + 1, engine: o.engine || a.next && o.depth == 1}, known || counted)
		}
	}
	for _, r := range roots {
		if s, err := a.proc.pid(r); err == nil {
			if start, seen := a.root[r]; seen && start != s.start {
				continue
			}
			a.root[r] = s.start
			if o, ok := a.ours[procKey{r, s.start}]; ok {
				o.engine = true
			}
			visit(r, owned{engine: true}, a.owns(r)) // named within its first second, all of which is ours
		}
	}
	visit(a.self, owned{}, false)
	for k := range a.ours { // adopted ones, which no walk reaches
		if _, done := visited[k]; !done {
			if s, err := a.proc.pid(k.pid); err == nil && s.start == k.start {
				visit(k.pid, owned{}, true)
			}
		}
	}
	a.next = true
	a.settle(visited)
	total := a.lost
	a.byID = make(map[int]procKey, len(a.ours))
	for k, o := range a.ours {
		total += o.last - o.offset
		a.byID[k.pid] = k
	}
	return total
}

// settle books what was seen: exited processes into their parents' reaped time or into lost.
func (a *account) settle(visited map[procKey]pidStat) {
	for k, o := range a.ours {
		// A process without an entry in /proc has been waited for: its parent, read again now, holds its time for certain.
		if _, alive := visited[k]; alive {
			continue
		}
		if _, alive := visited[o.parent]; alive {
			if s, err := a.proc.pid(o.parent.pid); err == nil && s.start == o.parent.start {
				visited[o.parent] = s
			}
		}
	}
	reaped := map[procKey]int64{} // what each parent took over since the last update
	for k, s := range visited {
		o := a.ours[k]
		reaped[k] = s.children - o.children
		o.last, o.children = s.own+s.children, s.children
	}
	for k, o := range a.ours {
		if _, alive := visited[k]; alive {
			continue
		}
		used := o.last - o.offset
		if reaped[o.parent] >= o.last {
			reaped[o.parent] -= o.last
			// The parent's account now holds all of the child's time, also what came before it was ours.
			if p, ok := a.ours[o.parent]; ok {
				p.offset += o.offset
			}
		} else {
			a.lost += used
		}
		delete(a.ours, k)
	}
}

// engine lists the engine's processes that live, in order of their numbers.
func (a *account) engine() []int {
	var out []int
	for k, o := range a.ours {
		if o.engine {
			out = append(out, k.pid)
		}
	}
	slices.Sort(out)
	return out
}

// owns reports whether a process is ours: followed already, or below one that is.
func (a *account) owns(pid int) bool {
	for range 64 { // deeper than any process tree; also ends a loop of reused pids
		if k, ok := a.byID[pid]; ok {
			s, err := a.proc.pid(pid)
			return err != nil || s.start == k.start // gone in between: it was ours
		}
		s, err := a.proc.pid(pid)
		if err != nil || s.ppid <= 1 {
			return false
		}
		pid = s.ppid
	}
	return false
}
