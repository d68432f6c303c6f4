package host

import (
	"bytes"
	"crypto/rand"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// markName is in the environment of a plugin and so of whatever it starts, but for the servers of engines, whose environment is
// built from an allow-list and which are stopped by their own proof of absence.
const markName = "BROKER_PLUGIN_MARK"

func newMark() string { return markName + "=" + rand.Text() }

const (
	sweepEvery = 10 * time.Millisecond
	sweepLimit = time.Second
)

// sweep kills what a plugin that has ended left in groups and sessions of its own. Two looks in a row must find nothing: what
// forks and ends during one leaves a child that this one misses.
func sweep(mark string) {
	for until, clean := time.Now().Add(sweepLimit), 0; clean < 2 && time.Now().Before(until); {
		found := marked(mark)
		if len(found) == 0 {
			clean++
			continue
		}
		clean = 0
		for _, pid := range found {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(sweepEvery)
	}
}

// marked lists the live processes of this user with a mark; the environment of a zombie is empty.
func marked(mark string) []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var out []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		env, _ := os.ReadFile("/proc/" + name + "/environ")
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if string(kv) == mark {
				out = append(out, pid)
			}
		}
	}
	return out
}
