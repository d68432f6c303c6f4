package regular_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"enginebroker/matrix/regular"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"file": os.WriteFile(path("file"), []byte("abc"), 0o600),
		"pipe": syscall.Mkfifo(path("pipe"), 0o600),
		"link": os.Symlink("pipe", path("link")),
		"good": os.Symlink("file", path("good")),
		"zero": os.Symlink("/dev/zero", path("zero")),
	} {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, c := range []struct{ name, want string }{
		{"file", ""}, {"good", ""}, {"pipe", "a named pipe is no regular file"}, {"link", "a named pipe is no regular file"},
		{"zero", "a device is no regular file"}, {".", "a folder is no regular file"}, {"gone", "no such file"},
	} {
		_, err := regular.ReadFile(path(c.name), 3)
		says(t, c.name, err, c.want)
		if c.name == "zero" {
			continue // leads out of the root
		}
		f, err := regular.OpenIn(root, c.name)
		says(t, c.name+" in a root", err, c.want)
		if err == nil {
			_ = f.Close()
		}
		_, err = regular.ReadFileIn(root, c.name, 3)
		says(t, c.name+" read in a root", err, c.want)
	}
	_, err = regular.ReadFile(path("file"), 2)
	says(t, "limit", err, "larger than 2 bytes")
	_, err = regular.ReadFileIn(root, "file", 2)
	says(t, "limit in a root", err, "larger than 2 bytes")
}

func says(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}
