package box

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"enginebroker/matrix"
)

// real opens this machine's box: locks and eviction need true processes and files.
func real(t *testing.T) *Box {
	t.Helper()
	b, err := Open(t.Context(), Options{Profile: "cpu", RuntimeDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLockIsHeldByOne(t *testing.T) {
	b := real(t)
	l, err := b.Acquire("run r1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Acquire("run r2")
	held, ok := errors.AsType[*HeldError](err)
	if !ok || held.Holder.PID != os.Getpid() || held.Holder.Name != "run r1" || !held.Known {
		t.Fatalf("second broker: %v", err)
	}
	if !strings.Contains(err.Error(), "run r1") || !strings.Contains(err.Error(), "since") {
		t.Errorf("the message names no holder: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	l, err = b.Acquire("run r2")
	if err != nil || l.Previous.Present() {
		t.Fatalf("after release: %v, previous %+v", err, l)
	}
	l.Release()
}

func TestStaleLock(t *testing.T) {
	b := real(t)
	me, err := b.self()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		who   matrix.Process
		stale bool
	}{
		{"another boot", matrix.Process{PID: me.PID, StartTime: me.StartTime, BootID: "other"}, true},
		{"the number is another process now", matrix.Process{PID: me.PID, StartTime: me.StartTime + 1, BootID: me.BootID}, true},
		{"no such process", matrix.Process{PID: 1 << 30, StartTime: 1, BootID: me.BootID}, true},
		{"alive, but the file lock did not reach us", me, false},
	} {
		data, err := json.Marshal(Holder{Process: c.who, Name: "run r0", Since: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.runtimePath("lock"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := b.Acquire("run r1")
		if (err == nil) != c.stale {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			if p, ok := l.Previous.Get(); !ok || p.Name != "run r0" {
				t.Errorf("%s: the dead holder is forgotten", c.name)
			}
			l.Release()
		}
	}
}

func TestTornLockFile(t *testing.T) {
	b := real(t)
	if err := os.WriteFile(b.runtimePath("lock"), []byte(`{"holder": "run r`), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := b.Acquire("run r1")
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}

func TestUnfinished(t *testing.T) {
	b := real(t)
	dir := t.TempDir()
	if u, err := b.Unfinished(dir); err != nil || u.Present() {
		t.Fatalf("a run that never began: %v %v", u, err)
	}
	end, err := b.Begin(dir, "run r1")
	if err != nil {
		t.Fatal(err)
	}
	fate := func() Fate {
		u, err := b.Unfinished(dir)
		if err != nil {
			t.Fatal(err)
		}
		return u.Or(Unfinished{}).Fate
	}
	if fate() != FateRunning {
		t.Errorf("its own run: %s", fate())
	}
	path := filepath.Join(dir, unfinishedName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(data), b.BootID(), "another-boot", 1))
	if fate() != FateVanished {
		t.Errorf("after a reboot: %s", fate())
	}
	write(strings.Replace(string(data), `"start_time":`, `"start_time":9`, 1))
	if fate() != FateDied {
		t.Errorf("after the broker died: %s", fate())
	}
	write(`{"pid": 12`)
	if _, err := b.Unfinished(dir); err == nil {
		t.Error("a torn mark is read as an end")
	}
	if err := end(); err != nil || fate() != "" {
		t.Errorf("after the end: %v %s", err, fate())
	}
}
