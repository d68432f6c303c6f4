package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"enginebroker/matrix"
)

// State is what a state file says of a tree: enough for a later start to find exactly that tree, and no other.
// It is written before the launch with no root (the marker alone finds the tree then) and completed after.
type State struct {
	LoadID string                     `json:"load_id"`
	BootID string                     `json:"boot_id"`
	Host   string                     `json:"host"`
	Port   int                        `json:"port"`
	Argv0  string                     `json:"argv0"`
	Dir    string                     `json:"dir"` // working directory, removed with the tree
	Root   matrix.Opt[matrix.Process] `json:"root,omitzero"`
	Tool   []string                   `json:"tool,omitempty"` // of a container: how to ask about it
}

// dirPrefix begins the name of every working directory; nothing else is ever removed.
const dirPrefix = "broker-cwd-"

// removeDir removes the working directory of a tree that is gone.
func (s State) removeDir() error {
	if !strings.HasPrefix(filepath.Base(s.Dir), dirPrefix) {
		return nil
	}
	return os.RemoveAll(s.Dir)
}

// ReadState reads a state file. A missing file is fs.ErrNotExist.
func ReadState(path string) (State, error) {
	var s State
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: not a state file (%w): look for a server of an earlier run by hand, then remove the file", path, err)
	}
	if s.LoadID == "" || s.BootID == "" {
		return s, fmt.Errorf("%s: a state file without load_id or boot_id: look for a server of an earlier run by hand, then remove the file", path)
	}
	return s, nil
}

// write replaces the file as a whole: a torn state file would lose a running server.
func (s State) write(path string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	defer os.Remove(f.Name()) // gone already after the rename
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("state file %s: %w", path, err)
	}
	return nil
}

func removeState(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

// BootID is the identifier of the running boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
