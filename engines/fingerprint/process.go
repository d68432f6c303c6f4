package fingerprint

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"enginebroker/matrix/regular"
)

// process is what /proc says of one process. Paths are those the process sees; inside gives ours.
type process struct {
	dir     string // PROC/PID
	pid     int
	exe     string // as /proc/PID/exe names it
	program string // the program: exe, or what a loader was told to run
	argv    []string
	env     map[string]string
	cwd     string
	maps    []mapping
}

// mapping is one line of /proc/PID/maps with a file behind it.
type mapping struct {
	span    string // start-end, the name in map_files
	exec    bool
	dev     uint64
	inode   uint64
	path    string
	deleted bool
}

const (
	maxCmdline = 2 << 20 // bytes: the kernel's own limit on argv and environment (ARG_MAX)
	maxMaps    = 64 << 20
)

func readProcess(proc string, pid int) (*process, error) {
	p := &process{dir: filepath.Join(proc, strconv.Itoa(pid)), pid: pid}
	var err error
	if p.exe, err = os.Readlink(filepath.Join(p.dir, "exe")); err != nil {
		return nil, p.cannot(err)
	}
	p.exe = strings.TrimSuffix(p.exe, " (deleted)")
	if p.cwd, err = os.Readlink(filepath.Join(p.dir, "cwd")); err != nil {
		return nil, p.cannot(err)
	}
	argv, err := regular.ReadFile(filepath.Join(p.dir, "cmdline"), maxCmdline)
	if err != nil {
		return nil, p.cannot(err)
	}
	p.argv = strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00")
	env, err := regular.ReadFile(filepath.Join(p.dir, "environ"), maxCmdline)
	if err != nil {
		return nil, p.cannot(err)
	}
	p.env = map[string]string{}
	for kv := range strings.SplitSeq(string(env), "\x00") {
		if k, v, ok := strings.Cut(kv, "="); ok {
			p.env[k] = v
		}
	}
	maps, err := regular.ReadFile(filepath.Join(p.dir, "maps"), maxMaps)
	if err != nil {
		return nil, p.cannot(err)
	}
	if p.maps, err = parseMaps(maps); err != nil {
		return nil, fmt.Errorf("%s/maps: %w", p.dir, err)
	}
	p.program = p.main()
	return p, nil
}

// readTree reads a process tree, root first. A child that ended meanwhile is no part of it any more; every other process that
// cannot be read is an error.
func readTree(proc string, pids []int) ([]*process, error) {
	var tree []*process
	for i, pid := range pids {
		p, err := readProcess(proc, pid)
		if i > 0 && isGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		tree = append(tree, p)
	}
	return tree, nil
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// cannot says whose process it is and what gives access.
func (p *process) cannot(err error) error {
	switch {
	case isGone(err):
		return fmt.Errorf("fingerprint: process %d is gone: %w", p.pid, err)
	case errors.Is(err, fs.ErrPermission):
		var st unix.Stat_t
		owner := "another user"
		if unix.Stat(p.dir, &st) == nil {
			owner = fmt.Sprintf("uid %d", st.Uid)
		}
		return fmt.Errorf("fingerprint: process %d belongs to %s: run the broker as that user, or give it CAP_SYS_PTRACE: %w", p.pid, owner, err)
	}
	return fmt.Errorf("fingerprint: process %d: %w", p.pid, err)
}

// parseMaps reads /proc/PID/maps, files only (proc_pid_maps(5)).
func parseMaps(b []byte) ([]mapping, error) {
	var out []mapping
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 64<<10)
	for n := 1; s.Scan(); n++ {
		fields := strings.SplitN(s.Text(), " ", 6)
		if len(fields) < 5 {
			return nil, fmt.Errorf("line %d has %d fields", n, len(fields))
		}
		if len(fields) < 6 {
			continue
		}
		inode, err := strconv.ParseUint(fields[4], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d: inode %q", n, fields[4])
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(fields[3], "%x:%x", &major, &minor); err != nil {
			return nil, fmt.Errorf("line %d: device %q", n, fields[3])
		}
		path := strings.ReplaceAll(strings.TrimLeft(fields[5], " "), `\012`, "\n")
		m := mapping{span: fields[0], exec: strings.Contains(fields[1], "x"), dev: unix.Mkdev(major, minor), inode: inode}
		m.path, m.deleted = strings.CutSuffix(path, " (deleted)")
		if inode != 0 && strings.HasPrefix(m.path, "/") && !anonymous(m.path) {
			out = append(out, m)
		}
	}
	return out, s.Err()
}

// anonymous tells shared memory and devices, which show as files and hold no program from disk.
func anonymous(path string) bool {
	return slices.ContainsFunc([]string{"/memfd:", "/dev/", "/SYSV", "/[", "/anon_hugepage"}, func(p string) bool { return strings.HasPrefix(path, p) })
}

// inside gives our path of a file that the process sees at path: through its own root where that can be entered.
func (p *process) inside(path string) string {
	if in := filepath.Join(p.root(), path); exists(in) {
		return in
	}
	return path
}

func (p *process) root() string { return filepath.Join(p.dir, "root") }

// real resolves path as the process would, and returns what it sees there.
func (p *process) real(path string) string {
	if real, _, err := links(p.root(), path); err == nil {
		return real
	}
	if real, _, err := links("", path); err == nil {
		return real
	}
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

var loaderName = regexp.MustCompile(`^(ld-linux.*\.so\.\d+|ld-musl-.*\.so\.\d+|ld64\.so\.\d+|ld\.so(\.\d+)?|ld-\d[\d.]*\.so)$`)

// loaderValues are the loader's options that take a value in the next argument (ld.so(8)).
var loaderValues = []string{"--library-path", "--preload", "--audit", "--argv0", "--inhibit-rpath", "--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"}

// main names the program: /proc/PID/exe, except behind a loader, where exe is the loader and the program is the first of its
// arguments that is mapped.
func (p *process) main() string {
	if !loaderName.MatchString(filepath.Base(p.exe)) {
		return p.exe
	}
	if i := p.programArg(); i < len(p.argv) {
		path := p.argv[i]
		if !filepath.IsAbs(path) {
			path = filepath.Join(p.cwd, path)
		}
		if real := p.real(path); p.maps != nil && slices.ContainsFunc(p.maps, func(m mapping) bool { return m.path == real }) {
			return real
		}
	}
	for _, m := range p.maps {
		if m.exec && m.path != p.exe && !strings.Contains(filepath.Base(m.path), ".so") {
			return m.path
		}
	}
	return p.exe
}

// programArg is the index in argv of the program behind a loader; 0 without one.
func (p *process) programArg() int {
	if !loaderName.MatchString(filepath.Base(p.exe)) {
		return 0
	}
	i := 1
	for i < len(p.argv) && strings.HasPrefix(p.argv[i], "--") {
		if slices.Contains(loaderValues, p.argv[i]) {
			i++
		}
		i++
	}
	return i
}

// helperName are shells, init programs and compilers, with the target and version that compilers carry in their names.
var helperName = regexp.MustCompile(`^((x86_64|aarch64)-linux-gnu-)?(sh|bash|dash|busybox|tini|docker-init|dumb-init|catatonit|sleep|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|gcc|g\+\+|cc1|cc1plus|collect2|ld|ld\.bfd|as|clang|clang\+\+|lld|ninja|cmake|make|git)(-\d+(\.\d+)*)?$`)

// helper tells processes that a tree holds for a while and that do not serve: a build that included them would change from one
// moment to the next.
func (p *process) helper() bool { return helperName.MatchString(filepath.Base(p.program)) }

// links resolves path below root, component by component, and returns the real path as seen from root and the links on the
// way. Absolute links start again at root, so that a container's path stays in its container.
func links(root, path string) (string, []string, error) {
	if !filepath.IsAbs(path) {
		return "", nil, fmt.Errorf("%s is not an absolute path", path)
	}
	var hops []string
	at, rest := "/", strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if next == "/" { // the process's root is a link to us, and none to it
			at = next
			continue
		}
		st, err := os.Lstat(filepath.Join(root+"/", next))
		if err != nil {
			return "", hops, err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if len(hops) == 40 { // as the kernel (path_resolution(7))
			return "", hops, fmt.Errorf("%s: symbolic links in a loop", path)
		}
		to, err := os.Readlink(filepath.Join(root+"/", next))
		if err != nil {
			return "", hops, err
		}
		hops = append(hops, next+" -> "+to)
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(filepath.Clean(to), "/"), "/"), rest...)
	}
	return at, hops, nil
}
