package artifact

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// checkpoint54GB makes a sparse checkpoint like Qwen3.8-27B in bf16: 54 GB in 15 shards with index, configuration and a
// tokenizer of 20 MB.
func checkpoint54GB(b testing.TB) string {
	b.Helper()
	dir := b.TempDir()
	var shards [][]entry
	for s := range 15 {
		var e []entry
		for l := range 5 {
			p := fmt.Sprintf("model.language_model.layers.%d.", 5*s+l)
			for _, n := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} {
				e = append(e, entry{p + n + ".weight", "BF16", []int64{5120, 10240}})
			}
			for _, n := range []string{"input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"} {
				e = append(e, entry{p + n + ".weight", "BF16", []int64{5120}})
			}
		}
		shards = append(shards, e)
	}
	var index strings.Builder
	index.WriteString(`{"metadata":{"total_size":1},"weight_map":{"`)
	for i, e := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		writeSafetensors(b, filepath.Join(dir, name), e)
		for _, t := range e {
			index.WriteString(t.name + `":"` + name + `","`)
		}
	}
	writeFile(b, filepath.Join(dir, indexName), strings.TrimSuffix(index.String(), `,"`)+"}}")
	writeFile(b, filepath.Join(dir, "config.json"), `{"architectures":["Qwen3_5ForConditionalGeneration"],"dtype":"bfloat16"}`)
	writeFile(b, filepath.Join(dir, "tokenizer.json"), strings.Repeat(" ", 20<<20))
	return dir
}

// The measure: headers of a 54 GB checkpoint in at most 300 ms, warm (issue of identity, Measures).
func BenchmarkHeaders54GB(b *testing.B) {
	dir := checkpoint54GB(b)
	for b.Loop() {
		m, _, err := Open(b.Context(), Locator{Path: dir}, Options{HeadersOnly: true})
		if err != nil || m.Parameters < 27e9 {
			b.Fatal(m.Parameters, err)
		}
	}
}

// The measure: hashing at 90 % of sha256sum or more, summed over all cores: the sums of the manifest, of as many processes of
// sha256sum as there are cores, and of hashing without anything around it, in turns, so that what else runs meets all alike.
// openssl is what sha256sum is where it is built with it. Each is given in GB by second of processor time, which a busy box
// changes less than it does the clock.
func BenchmarkHash(b *testing.B) {
	dir := b.TempDir()
	cores := runtime.GOMAXPROCS(0)
	const size = 128 << 20
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content) // never an error
	var names []string
	for i := range 2 * cores {
		names = append(names, fmt.Sprintf("f%d", i))
		writeFile(b, filepath.Join(dir, names[i]), string(content))
	}
	type way struct {
		name string
		run  func() error
	}
	ways := []way{
		{"manifest", func() error {
			_, err := (&Sums{known: map[stamp]string{}}).all(b.Context(), dir, names, Options{Workers: cores})
			return err
		}},
		{"in_memory", func() error {
			var g errgroup.Group
			for range cores {
				g.Go(func() error {
					h := sha256.New()
					for range 2 {
						h.Write(content)
					}
					return nil
				})
			}
			return g.Wait()
		}},
	}
	for _, tool := range [][]string{{"sha256sum"}, {"openssl", "dgst", "-sha256"}} {
		if _, err := exec.LookPath(tool[0]); err != nil {
			continue
		}
		ways = append(ways, way{tool[0], func() error {
			var g errgroup.Group
			for i := range cores {
				g.Go(func() error {
					cmd := exec.Command(tool[0], slices.Concat(tool[1:], names[2*i:2*i+2])...)
					cmd.Dir = dir
					return cmd.Run()
				})
			}
			return g.Wait()
		}})
	}
	spent := map[string]time.Duration{}
	rounds := 0
	for b.Loop() {
		for i := range ways {
			w := ways[(i+rounds)%len(ways)]
			before := processorTime(b)
			if err := w.run(); err != nil {
				b.Fatal(err)
			}
			spent[w.name] += processorTime(b) - before
		}
		rounds++
	}
	for name, d := range spent {
		b.ReportMetric(float64(rounds)*float64(len(names))*size/1e9/d.Seconds(), name+"-GB/cpu-s")
	}
}

// processorTime is what this process and the children it waited for have spent.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var d time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		d += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return d
}

// thousandBillion writes the headers of an NVFP4 checkpoint with 384 experts in 60 layers: 276 480 tensors in 70 000 modules.
func thousandBillion(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for s := range 60 {
		var e []entry
		for x := range 384 {
			for _, n := range []string{"gate_proj", "up_proj", "down_proj"} {
				p := fmt.Sprintf("language_model.model.layers.%d.mlp.experts.%d.%s", s, x, n)
				e = append(e, entry{p + ".weight", "U8", []int64{2048, 3584}}, entry{p + ".weight_scale", "F8_E4M3", []int64{2048, 448}},
					entry{p + ".weight_scale_2", "F32", nil}, entry{p + ".input_scale", "F32", nil})
			}
		}
		for i := range e {
			if e[i].shape == nil {
				e[i].shape = []int64{}
			}
		}
		writeSafetensors(t, filepath.Join(dir, fmt.Sprintf("model-%05d-of-00060.safetensors", s+1)), e)
	}
	return dir
}

// The measure: at most 64 MiB of memory for any artifact. What a census of the largest checkpoint holds is far below, and so
// is what its bounds allow.
func TestMemoryOfTheLargest(t *testing.T) {
	dir := thousandBillion(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := newCensus()
	for s := range 60 {
		path := filepath.Join(dir, fmt.Sprintf("model-%05d-of-00060.safetensors", s+1))
		if _, err := readSafetensors(path, func(x tensor) error { return c.add(path, x) }); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	held := after.HeapAlloc - before.HeapAlloc
	shares, parameters, unscaled := c.shares(false, 4)
	if c.tensors != 60*384*3*4 || label(shares, false, c) != "nvfp4" || parameters < 1e12 || len(unscaled) != 0 {
		t.Fatalf("%d tensors, %d parameters, %v", c.tensors, parameters, shares)
	}
	t.Logf("%d tensors in %d modules hold %.1f MiB", c.tensors, len(c.modules), float64(held)/(1<<20))
	if per := held / uint64(len(c.modules)); per*maxModules > 48<<20 {
		t.Errorf("%d bytes for a module: %d of them pass 48 MiB", per, maxModules)
	}
}

// Inspect a checkpoint of 600 GB: peak memory of the process is printed with the time.
func BenchmarkHeadersLargest(b *testing.B) {
	dir := thousandBillion(b)
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // resets the peak (proc(5))
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := Open(b.Context(), Locator{Path: dir}, Options{HeadersOnly: true}); err != nil {
			b.Fatal(err)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kib); err == nil {
			b.ReportMetric(kib/1024, "peak-MiB")
		}
	}
}
