// Package regular opens files that are files. A path that somebody else wrote may name a pipe, whose opening waits for ever
// and takes no signal, or a device that never ends; such a path is an error here, never a wait.
package regular

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// flags keep the opening of a pipe from waiting for its other end. They mean nothing to a regular file.
const flags = os.O_RDONLY | syscall.O_NONBLOCK

// Open opens a regular file, or what a link to one leads to, for reading.
func Open(path string) (*os.File, error) { return checked(os.OpenFile(path, flags, 0)) }

// OpenIn is Open below a root.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return checked(root.OpenFile(name, flags, 0))
}

// ReadFile reads a regular file of at most limit bytes; a larger one is an error that says so.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	return read(f, limit)
}

// ReadFileIn is ReadFile below a root.
func ReadFileIn(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := OpenIn(root, name)
	if err != nil {
		return nil, err
	}
	return read(f, limit)
}

func read(f *os.File, limit int64) ([]byte, error) {
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("larger than %d bytes", limit)}
	}
	return b, err
}

func checked(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: fmt.Errorf("%s is no regular file", kind(info.Mode()))}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "what lies there"
}
