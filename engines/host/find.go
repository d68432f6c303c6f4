package host

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	goplugin "github.com/hashicorp/go-plugin"
)

// Plugin is one executable that may be a plugin. What it serves shows once it is launched.
type Plugin struct {
	Name   string // file name
	Path   string // absolute, symbolic links resolved
	SHA256 string // of the bytes found, hex
}

// BesideBinary is the plugins directory that comes with this broker: plugins/ beside its executable.
func BesideBinary() (string, error) {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", fmt.Errorf("cannot find the broker's own executable: %w", err)
	}
	return filepath.Join(filepath.Dir(exe), "plugins"), nil
}

// Find lists the executables of the directories in order, then those beside the binary. The first of a name wins. Hidden
// files and files that are no programs are passed over; a program that cannot run is a problem, as is a directory that was
// named and cannot be read.
func Find(dirs []string) ([]Plugin, []*Problem) {
	var found []Plugin
	var problems []*Problem
	names := map[string]bool{}
	look := func(dir string, named bool) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			if named || !errors.Is(err, fs.ErrNotExist) {
				problems = append(problems, &Problem{Plugin: dir, Kind: Missing, Message: "the plugin directory cannot be read: " + cause(err),
					Fix: "correct the configured plugin directories", Err: err})
			}
			return
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || names[e.Name()] {
				continue
			}
			p, problem := examine(filepath.Join(dir, e.Name()))
			switch {
			case problem != nil:
				problems = append(problems, problem)
			case p.Path != "":
				names[p.Name] = true
				found = append(found, p)
			}
		}
	}
	for _, dir := range dirs {
		look(dir, true)
	}
	if dir, err := BesideBinary(); err == nil {
		look(dir, false)
	}
	return found, problems
}

// examine returns an empty plugin for what is no program.
func examine(path string) (Plugin, *Problem) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return Plugin{}, missing(path, err)
	}
	info, err := os.Stat(real)
	if err != nil {
		return Plugin{}, missing(path, err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 && !program(real) {
		return Plugin{}, nil
	}
	p := Plugin{Name: filepath.Base(path), Path: real}
	if problem := executable(p.Path, info); problem != nil {
		return Plugin{}, problem
	}
	p.SHA256, err = checksum(real)
	if err != nil {
		return Plugin{}, &Problem{Plugin: real, Kind: NotExecutable, Message: "it cannot be read: " + cause(err), Fix: "make it readable for this user", Err: err}
	}
	return p, nil
}

func missing(path string, err error) *Problem {
	return &Problem{Plugin: path, Kind: Missing, Message: "it is not there: " + cause(err), Fix: "install it, or correct its path in the configuration", Err: err}
}

func executable(path string, info fs.FileInfo) *Problem {
	switch {
	case !info.Mode().IsRegular():
		return &Problem{Plugin: path, Kind: NotExecutable, Message: "it is no regular file", Fix: "name the plugin's executable"}
	case info.Mode()&0o111 == 0:
		return &Problem{Plugin: path, Kind: NotExecutable, Message: "it is not executable", Fix: "chmod +x " + path}
	}
	return nil
}

// program reports whether the kernel would know what to do with the file if it had the mode.
func program(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	n, _ := io.ReadFull(f, magic)
	return bytes.Equal(magic[:n], []byte("\x7fELF")) || bytes.HasPrefix(magic[:n], []byte("#!"))
}

// cause is the last part of a file error; the path is in the problem already.
func cause(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

func checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// verify checks that the plugin is there, can run, and is the bytes that were pinned or found. It completes a plugin of
// which only the path is known.
func verify(c *Config) *Problem {
	p := verifyFile(c)
	if p != nil {
		p.Label = c.Label
	}
	return p
}

func verifyFile(c *Config) *Problem {
	path, err := filepath.Abs(c.Plugin.Path)
	if err != nil {
		return missing(c.Plugin.Path, err)
	}
	c.Plugin.Path = path
	if c.Plugin.Name == "" {
		c.Plugin.Name = filepath.Base(path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return missing(path, err)
	}
	if p := executable(path, info); p != nil {
		return p
	}
	want, from := c.Pin, "pinned"
	if want == "" {
		want, from = c.Plugin.SHA256, "found at the start"
	}
	if want == "" {
		if c.Plugin.SHA256, err = checksum(path); err != nil {
			return &Problem{Plugin: path, Kind: NotExecutable, Message: "it cannot be read: " + cause(err), Fix: "make it readable for this user", Err: err}
		}
		return nil
	}
	sum, err := hex.DecodeString(want)
	if err != nil || len(sum) != sha256.Size {
		return &Problem{Plugin: path, Kind: Checksum, Message: fmt.Sprintf("the checksum %.80q is not 64 hex digits of SHA-256", want), Fix: "correct the pin; sha256sum " + path}
	}
	ok, err := (&goplugin.SecureConfig{Checksum: sum, Hash: sha256.New()}).Check(path)
	if err != nil {
		return &Problem{Plugin: path, Kind: NotExecutable, Message: "it cannot be read: " + cause(err), Fix: "make it readable for this user", Err: err}
	}
	if !ok {
		got, _ := checksum(path)
		return &Problem{Plugin: path, Kind: Checksum, Message: fmt.Sprintf("its SHA-256 is %s, not the one that was %s, %s", got, from, want),
			Fix: "install the pinned build, or pin this one after checking where it comes from", Err: goplugin.ErrChecksumsDoNotMatch}
	}
	c.Plugin.SHA256 = hex.EncodeToString(sum)
	return nil
}
