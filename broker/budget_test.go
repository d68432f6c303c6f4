package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// budgetConfig streams 16 × 50 tokens per second, the load that the budgets of docs/architecture.md are stated for.
const budgetConfig = `
subject: a
workload: stream
box: simulated
workloads:
  stream: {prompt_tokens: 64, output_tokens: 64, concurrency: [16]}
instances:
  a: {plugin: simulated, settings: {dialect: vllm, opens: [safetensors/bf16], ttft: 50ms, itl: 20ms}}
  b: {plugin: simulated, settings: {dialect: sglang, opens: [safetensors/bf16], ttft: 50ms, itl: 20ms}}
`

// BenchmarkBudget runs the real binary against two simulated engines and prints what it takes while a server is up: its own
// memory (budget 64 MiB), that of the largest plugin (20 MiB), and the processor time of the plugins in percent of a core
// (everything beside the client together: 1 %). Resident pages that are the program's file, which the kernel shares and may
// drop, are in -rss and not in -own. The client's own processor time per event is printed by BenchmarkEndToEnd of
// matrix/stopwatch and by broker calibrate. One run takes some 50 s on an idle box: -benchtime 1x.
func BenchmarkBudget(b *testing.B) {
	dir := b.TempDir()
	bin := filepath.Join(dir, "broker")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		b.Fatalf("%s%v", out, err)
	}
	if err := os.Rename(plugins, filepath.Join(dir, "plugins")); err != nil {
		b.Fatal(err)
	}
	defer os.Rename(filepath.Join(dir, "plugins"), plugins)
	config := filepath.Join(dir, "broker.yaml")
	if err := os.WriteFile(config, []byte(budgetConfig), 0o644); err != nil {
		b.Fatal(err)
	}
	var use usage
	for i := 0; b.Loop(); i++ {
		var log bytes.Buffer
		cmd := exec.Command(bin, "matrix", "--model", "qwen3.8-27b", "--config", config, "--run", fmt.Sprintf("budget-%d", i), "--seed", "1")
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		tick := time.NewTicker(50 * time.Millisecond)
		err := use.watch(cmd.Process.Pid, tick.C, done)
		tick.Stop()
		// A quick run ends in a verdict with a code of its own: WITHHELD for want of an A/A, VOID on a box that stalled the client.
		if code := cmd.ProcessState.ExitCode(); err != nil && code != 4 && code != 5 {
			b.Fatalf("%v\n%s", err, log.Bytes())
		}
	}
	b.ReportMetric(use.broker.rss, "MiB-broker-rss")
	b.ReportMetric(use.broker.own, "MiB-broker-own")
	b.ReportMetric(use.plugin.rss, "MiB-plugin-rss")
	b.ReportMetric(use.plugin.own, "MiB-plugin-own")
	b.ReportMetric(100*use.pluginCPU.Seconds()/use.up.Seconds(), "%core-plugins")
	b.ReportMetric(100*use.brokerCPU.Seconds()/use.up.Seconds(), "%core-broker")
}

// memory is resident MiB: all of it, and what is no page of a file.
type memory struct{ rss, own float64 }

func (m *memory) most(x memory) { m.rss, m.own = max(m.rss, x.rss), max(m.own, x.own) }

// usage is what was seen while a server was up.
type usage struct {
	broker, plugin       memory // the largest seen
	brokerCPU, pluginCPU time.Duration
	up                   time.Duration
}

func (u *usage) watch(pid int, tick <-chan time.Time, done <-chan error) error {
	var last map[int]proc
	at := time.Now()
	for {
		select {
		case err := <-done:
			return err
		case <-tick:
		}
		now := family(pid)
		elapsed := time.Since(at)
		at = time.Now()
		serving := false
		for _, p := range now {
			serving = serving || p.serves
		}
		if serving {
			u.up += elapsed
			for id, p := range now {
				spent := time.Duration(0)
				if old, ok := last[id]; ok {
					spent = p.cpu - old.cpu
				}
				switch {
				case id == pid:
					u.broker.most(p.memory)
					u.brokerCPU += spent
				case !p.serves:
					u.plugin.most(p.memory)
					u.pluginCPU += spent
				}
			}
		}
		last = now
	}
}

// proc is one process of the family of a broker; the servers are the engines, not the broker's own.
type proc struct {
	memory
	parent int
	serves bool
	cpu    time.Duration
}

// family reads the processes below a pid, itself included.
func family(pid int) map[int]proc {
	all := map[int]proc{}
	entries, _ := os.ReadDir("/proc") // what cannot be read has ended meanwhile
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err1 := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		argv, err2 := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		_, rest, ok := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		status, err3 := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err1 != nil || err2 != nil || err3 != nil || !ok || len(f) < 13 {
			continue
		}
		mib := func(field string) float64 {
			_, x, _ := strings.Cut(string(status), "\n"+field+":")
			kib, _ := strconv.ParseFloat(strings.Fields(x + " 0")[0], 64)
			return kib / 1024
		}
		number := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
		args := strings.Split(string(argv), "\x00")
		// Fields of proc(5) from the third on: ppid 4, utime 14 and stime 15 in ticks of 10 ms.
		all[id] = proc{memory: memory{mib("VmRSS"), mib("RssAnon")}, parent: number(1), serves: len(args) > 1 && args[1] == "serve",
			cpu: time.Duration(number(11)+number(12)) * 10 * time.Millisecond}
	}
	ours := map[int]proc{}
	for id, p := range all {
		for up := id; up > 1; up = all[up].parent {
			if up == pid {
				ours[id] = p
				break
			}
		}
	}
	return ours
}
