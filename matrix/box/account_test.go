package box

import (
	"slices"
	"testing"
)

// tree is a broker (100) with a plugin (101) and, once started, a server (102) with a worker (103).
func newTree(t *testing.T) (fakeProc, *account) {
	p := newProc(t)
	p.process(100, 1, 50, 0, 10, "101")
	p.process(101, 100, 20, 0, 20, "")
	a := newAccount(procfs{p.root})
	a.self, a.scan = 100, false
	return p, a
}

func TestAccountFollowsTheEngine(t *testing.T) {
	for _, scan := range []bool{false, true} { // a kernel that lists children, and one that does not
		followsTheEngine(t, scan, nil)
		followsTheEngine(t, scan, []int{102}) // the plugin has named it already
	}
}

func followsTheEngine(t *testing.T, scan bool, roots []int) {
	p, a := newTree(t)
	a.scan = scan
	start := a.update(nil)
	p.process(101, 100, 25, 0, 20, "102")
	p.process(102, 101, 300, 0, 30, "103")
	p.process(103, 102, 700, 0, 31, "")
	// 5 of the plugin; all that the new processes ever used, because they were born below a process of ours.
	if got := a.update(roots) - start; got != 1005 {
		t.Errorf("roots %v: ours moved by %d ticks, want 1005", roots, got)
	}
	if got := a.engine(); !slices.Equal(got, []int{102, 103}) {
		t.Errorf("engine %v, want the server and its worker, not broker and plugin", got)
	}
	for pid, want := range map[int]bool{100: true, 103: true, 1: false, 999: false} {
		if a.owns(pid) != want {
			t.Errorf("owns(%d) = %v", pid, !want)
		}
	}
}

func TestAccountKeepsWhatExited(t *testing.T) {
	for _, c := range []struct {
		name   string
		reaped int64 // what the parent's account shows of its children
		want   int64
	}{
		{"the parent waited for it and took 720 ticks over", 720, 1025},
		{"nobody waited for it: its last 700 ticks are kept", 0, 1005},
	} {
		p, a := newTree(t)
		start := a.update(nil)
		p.process(101, 100, 25, 0, 20, "102")
		p.process(102, 101, 300, 0, 30, "103")
		p.process(103, 102, 700, 0, 31, "")
		a.update(nil)
		p.exit(103)
		p.process(102, 101, 300, c.reaped, 30, "")
		if got := a.update(nil) - start; got != c.want {
			t.Errorf("%s: ours moved by %d ticks, want %d", c.name, got, c.want)
		}
		if got := a.update(nil) - start; got != c.want {
			t.Errorf("%s: the next update says %d", c.name, got)
		}
	}
}

func TestAccountRoots(t *testing.T) {
	p, a := newTree(t)
	p.process(500, 1, 4000, 0, 40, "") // a container's server, named by the plugin, older than the watch
	start := a.update([]int{500})
	p.process(500, 1, 4010, 0, 40, "")
	if got := a.update([]int{500}) - start; got != 10 {
		t.Errorf("ours moved by %d ticks, want 10: what came before it was named is not ours", got)
	}
	if !slices.Equal(a.engine(), []int{500}) {
		t.Errorf("engine %v", a.engine())
	}
	// The number comes back as another process.
	p.process(500, 1, 9, 0, 41, "")
	a.update([]int{500})
	if len(a.engine()) != 0 || a.owns(500) {
		t.Error("another process with the old number is taken for the engine")
	}
}

// A server that is adopted by init after its launcher ended stays ours.
func TestAccountAdopted(t *testing.T) {
	p, a := newTree(t)
	a.update(nil)
	p.process(101, 100, 20, 0, 20, "102")
	p.process(102, 101, 10, 0, 30, "103")
	p.process(103, 102, 100, 0, 31, "")
	start := a.update(nil)
	p.exit(102)
	p.process(101, 100, 20, 10, 20, "")
	p.process(103, 1, 150, 0, 31, "")
	if got := a.update(nil) - start; got != 50 {
		t.Errorf("ours moved by %d ticks, want 50", got)
	}
	if !slices.Equal(a.engine(), []int{103}) {
		t.Errorf("engine %v", a.engine())
	}
}
