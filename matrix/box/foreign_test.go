package box

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"enginebroker/matrix"
)

// foreignFile names, in a process of an ordinary user, the file of root that it is to look at.
const foreignFile = "BOX_TEST_FOREIGN_FILE"

// A file that root owns, as a container leaves it, under an ordinary user: the kernel reports every page of it resident, so
// that its eviction is not evaluable, never failed and never proved; doctor says which files and the way out.
func TestForeignFile(t *testing.T) {
	path := os.Getenv(foreignFile)
	if path == "" {
		asOrdinaryUser(t)
		return
	}
	b := real(t)
	own := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(own, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := b.Evict([]string{own, path})
	if err != nil || n.Present() {
		t.Errorf("eviction of a file of root: %v, %v", n, err)
	}
	d, err := b.Doctor(t.Context(), Checks{Files: []string{own, path}})
	if err != nil {
		t.Fatal(err)
	}
	f := find(t, d, "page cache")
	if f.State != StateCannot || !strings.Contains(f.Costs, string(matrix.PageCacheResident)) || !strings.Contains(f.Saw, path) || !strings.Contains(f.Fix, "chown") {
		t.Errorf("%+v", f)
	}
}

// asOrdinaryUser runs this test again as nobody, on a file of root.
func asOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := t.TempDir()
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(dir, "test")
	if err := copyFile(exe, "/proc/self/exe", 0o755); err != nil {
		t.Fatal(err)
	}
	weights := filepath.Join(dir, "weights")
	if err := os.WriteFile(weights, make([]byte, 1<<16), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestForeignFile$", "-test.v")
	cmd.Env = append(os.Environ(), foreignFile+"="+weights)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestForeignFile") {
		t.Errorf("%v\n%s", err, out)
	}
}

func copyFile(to, from string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}
