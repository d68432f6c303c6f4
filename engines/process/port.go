package process

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"enginebroker/matrix"
)

// Listener is one socket that listens on a port.
type Listener struct {
	Address netip.AddrPort
	Inode   uint64
	Owner   matrix.Opt[matrix.Process] // absent: no process whose descriptors can be read holds it
}

func (l Listener) String() string {
	if p, ok := l.Owner.Get(); ok {
		return fmt.Sprintf("%s held by pid %d %s", l.Address, p.PID, p.Exe)
	}
	return fmt.Sprintf("%s held by a process that cannot be read (socket inode %d)", l.Address, l.Inode)
}

// PortTaken is the error of a port that somebody else listens on.
type PortTaken struct {
	Port    int
	Holders []Listener
}

func (e *PortTaken) Error() string {
	var who []string
	for _, l := range e.Holders {
		who = append(who, l.String())
	}
	return fmt.Sprintf("port %d is taken: %s", e.Port, strings.Join(who, "; "))
}

// FreePort asks the kernel for a port of host that is free now.
func FreePort(host string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fmt.Errorf("free port on %s: %w", host, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// CheckPortFree reports a *PortTaken when anybody listens on the port, on any address: a server that shares the port
// (SO_REUSEPORT) binds without an error and then answers part of the requests.
func CheckPortFree(host string, port int) error {
	ls, err := Listeners(port)
	if err != nil {
		return err
	}
	if len(ls) > 0 {
		return &PortTaken{Port: port, Holders: ls}
	}
	// A bound socket that does not listen yet is in no table; binding finds it.
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("port %d of %s cannot be bound: %w", port, host, err)
	}
	return l.Close()
}

// Listeners finds every socket that listens on the port in this network namespace, with its owner.
func Listeners(port int) ([]Listener, error) {
	var found []Listener
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(table)
		if os.IsNotExist(err) {
			continue // no IPv6 here
		}
		if err != nil {
			return nil, err
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			if l, ok := parseListener(sc.Text()); ok && int(l.Address.Port()) == port {
				found = append(found, l)
			}
		}
		err = sc.Err()
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", table, err)
		}
	}
	if len(found) > 0 {
		attribute(found)
	}
	return found, nil
}

// parseListener reads one line of /proc/net/tcp or tcp6; only listening sockets (state 0A) are returned.
func parseListener(line string) (Listener, bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != "0A" {
		return Listener{}, false
	}
	addr, port, ok := strings.Cut(f[1], ":")
	if !ok {
		return Listener{}, false
	}
	raw, err := hex.DecodeString(addr)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return Listener{}, false
	}
	for i := 0; i < len(raw); i += 4 { // each 32-bit word is printed in host order; every host we run on is little-endian
		slices.Reverse(raw[i : i+4])
	}
	ip, _ := netip.AddrFromSlice(raw)
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return Listener{}, false
	}
	inode, err := strconv.ParseUint(f[9], 10, 64)
	if err != nil {
		return Listener{}, false
	}
	return Listener{Address: netip.AddrPortFrom(ip.Unmap(), uint16(p)), Inode: inode}, true
}

// attribute finds the owners by the descriptors of every process.
func attribute(ls []Listener) {
	all, err := readAll()
	if err != nil {
		return // every owner stays unknown, which is never taken for ours
	}
	want := map[string]int{}
	for i, l := range ls {
		want[fmt.Sprintf("socket:[%d]", l.Inode)] = i
	}
	boot, _ := BootID()
	for _, s := range all {
		for _, link := range fdLinks(s.pid) {
			if i, ok := want[link]; ok && !ls[i].Owner.Present() {
				exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.pid))
				ls[i].Owner = matrix.Some(matrix.Process{PID: s.pid, StartTime: s.start, BootID: boot, Exe: exe})
			}
		}
	}
}

func fdLinks(pid int) []string {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	links := make([]string, 0, len(names))
	for _, n := range names {
		if l, err := os.Readlink(dir + "/" + n); err == nil {
			links = append(links, l)
		}
	}
	return links
}

// foreign returns the listeners on the port whose owner is not in the tree.
func foreign(port int, members []matrix.Process) ([]Listener, error) {
	ls, err := Listeners(port)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ls, func(l Listener) bool {
		p, ok := l.Owner.Get()
		return ok && slices.ContainsFunc(members, func(m matrix.Process) bool { return m.PID == p.PID && m.StartTime == p.StartTime })
	}), nil
}

// Owners names the processes that listen on the port of a URL of this machine, as far as they can be read.
func Owners(base string) ([]matrix.Process, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, nil // another machine's processes cannot be read here
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return nil, fmt.Errorf("%s: no port", base)
	}
	ls, err := Listeners(port)
	if err != nil {
		return nil, err
	}
	var owners []matrix.Process
	for _, l := range ls {
		if p, ok := l.Owner.Get(); ok && !slices.Contains(owners, p) {
			owners = append(owners, p)
		}
	}
	return owners, nil
}
