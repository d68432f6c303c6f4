package box

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"enginebroker/matrix"
)

func TestWhoKilledIt(t *testing.T) {
	const nvrm = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal\n"
	for _, c := range []struct {
		name, kmsg, journal, events, vmstat string
		want                                string
	}{
		{name: "nobody", want: ""},
		{name: "N10: NVRM lines prove nothing", kmsg: nvrm + nvrm, want: ""},
		{name: "kernel", kmsg: nvrm + "Out of memory: Killed process 500 (python3) total-vm:9kB, anon-rss:1kB\n", want: "the kernel's OOM killer: Out of memory: Killed process 500"},
		{name: "kernel, another process", kmsg: "Out of memory: Killed process 5001 (python3)\n", want: ""},
		{name: "N11: cgroup limit", events: "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n", kmsg: "Memory cgroup out of memory: Killed process 500 (llama-server)\n", want: "its control group's memory limit"},
		{name: "earlyoom", journal: "mem avail: 1 of 9 MiB, sending SIGTERM to process 500 uid 1000 \"vllm\": badness 900\n", want: "earlyoom: "},
		{name: "earlyoom, another process", journal: "sending SIGKILL to process 77 uid 0 \"x\"\n", want: ""},
		{name: "systemd-oomd", journal: "Killed /user.slice/engine.scope due to memory pressure for /user.slice being 90% > 50%\n", want: "systemd-oomd"},
		{name: "counter alone", vmstat: "oom_kill 1\n", want: "probably the kernel's OOM killer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProc(t)
			p.put("500/cgroup", "0::/user.slice/engine.scope\n")
			k := newKillers(procfs{p.root}, 1_000_000)
			k.cgroups = t.TempDir()
			k.kmsg = filepath.Join(t.TempDir(), "kmsg")
			k.journal = func(context.Context, time.Time) string { return c.journal }
			group := filepath.Join(k.cgroups, "user.slice/engine.scope")
			if err := os.MkdirAll(group, 0o755); err != nil {
				t.Fatal(err)
			}
			write := func(text string) {
				if err := os.WriteFile(filepath.Join(group, "memory.events"), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("low 0\noom_kill 0\n")
			k.follow([]int{500})
			if c.events != "" {
				write(c.events)
			}
			if c.vmstat != "" {
				p.put("vmstat", c.vmstat)
			} else if err := os.WriteFile(k.kmsg, records(c.kmsg), 0o644); err != nil {
				t.Fatal(err)
			}
			got := k.who(t.Context(), matrix.Process{PID: 500})
			if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// records is a kernel log; the first record is older than the watch.
func records(text string) []byte {
	out := "6,1,999,-;Out of memory: Killed process 500 (an earlier one)\n SUBSYSTEM=memory\n"
	for l := range strings.Lines(text) {
		out += "6,2,1000,-;" + l
	}
	return []byte(out)
}
