package box

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEvict(t *testing.T) {
	b := real(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "weights")
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := residentPages(f, int64(len(data))); err != nil || n == 0 {
		t.Fatalf("a file just written: %d pages resident, %v", n, err)
	}
	twin := filepath.Join(dir, "twin")
	if err := os.Link(path, twin); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := b.Evict([]string{path, twin, filepath.Join(dir, "empty")})
	if err != nil {
		t.Fatal(err)
	}
	if onTmpfs(t, dir) {
		t.Skip("a tmpfs cannot drop its pages")
	}
	if v, ok := n.Get(); !ok || v != 0 {
		t.Errorf("resident after eviction: %v (evaluable %v)", v, ok)
	}
	for _, bad := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := b.Evict([]string{bad}); err == nil {
			t.Errorf("%s is evicted", bad)
		}
	}
}

func onTmpfs(t *testing.T, dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Type == unix.TMPFS_MAGIC
}
