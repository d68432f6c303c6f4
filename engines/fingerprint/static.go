package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Static says what a program on disk is, without starting it: its links, hash, code, build configuration, and the packages of
// the Python environment it belongs to. It is what an engine's description is made of; what then runs may differ, and Of says
// what it is. path is absolute, of a binary or of a script in an environment's bin directory.
func Static(ctx context.Context, path string, sum Sum) (matrix.Facts, error) {
	if sum == nil {
		sum = plainSum
	}
	real, hops, err := links("", path)
	if err != nil {
		return nil, fmt.Errorf("fingerprint: %s: %w", path, err)
	}
	total, err := sum(ctx, real)
	if err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	facts := matrix.Facts{
		observed(matrix.FactBinary, real, "resolved from "+path),
		observed(FactBinarySHA256, total, real),
		observed(FactBinaryLinks, strings.Join(append(hops, "= "+real), ", "), path),
	}
	if code, err := codeSum(real); err == nil {
		facts = append(facts, observed(FactBinaryCode, code, real+": .text"))
	}
	same := func(p string) string { return p }
	config, _ := buildConfiguration(real, same)
	facts = append(facts, config...)
	prefix, err := scriptPrefix(path, real)
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		facts = append(facts, observed(FactPrefix, prefix, "pyvenv.cfg above "+path))
		p := &process{program: filepath.Join(prefix, "bin/python")}
		for _, site := range p.sites(prefix) {
			f, list := environment(site, same)
			facts = append(facts, f...)
			facts = append(facts, observed(FactPackages, digestText(list), site))
		}
	}
	return sorted(facts), nil
}

// scriptPrefix finds the environment that a program of its bin directory runs in: by its own directory, as linked and as
// resolved, else by the interpreter that a script names in its first line.
func scriptPrefix(path, real string) (string, error) {
	for _, p := range []string{path, real, shebang(real)} {
		if p == "" {
			continue
		}
		prefix := filepath.Dir(filepath.Dir(p))
		if !exists(filepath.Join(prefix, "pyvenv.cfg")) {
			continue
		}
		dir, _, err := links("", prefix)
		if err != nil {
			return "", fmt.Errorf("fingerprint: %s: %w", prefix, err)
		}
		return dir, nil
	}
	return "", nil
}

// shebang returns the interpreter of a script, or nothing.
func shebang(path string) string {
	f, err := regular.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ""
	}
	line, _, _ := strings.Cut(string(head[:n]), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if fields := strings.Fields(rest); ok && len(fields) > 0 && filepath.IsAbs(fields[0]) {
		return fields[0]
	}
	return ""
}
