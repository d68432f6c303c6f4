package process

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// spared is the CPUs of the calling thread without the first n, which stay with the client that measures.
func spared(n int) (all, rest unix.CPUSet, err error) {
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return all, rest, fmt.Errorf("launch: CPUs of this process: %w", err)
	}
	rest = all
	for cpu := 0; n > 0 && rest.Count() > 0; cpu++ {
		if rest.IsSet(cpu) {
			rest.Clear(cpu)
			n--
		}
	}
	if rest.Count() == 0 {
		return all, rest, fmt.Errorf("launch: spare_cpus leaves none of the %d CPUs to the server: lower it", all.Count())
	}
	return all, rest, nil
}

// startBeside starts a command of which the first n CPUs are kept free. It is called on a thread of its own, whose CPUs a child
// inherits.
func startBeside(cmd *exec.Cmd, n int) error {
	if n == 0 {
		return cmd.Start()
	}
	all, rest, err := spared(n)
	if err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &rest); err != nil {
		return fmt.Errorf("launch: CPUs of the server: %w", err)
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &all))
}

// CPUs lists what a process may run on, as the kernel writes it: 0,2-5.
func CPUs(pid int) (string, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		return "", fmt.Errorf("CPUs of process %d: %w", pid, err)
	}
	var parts []string
	for cpu, left := 0, set.Count(); left > 0; cpu++ {
		if !set.IsSet(cpu) {
			continue
		}
		part, last := strconv.Itoa(cpu), cpu
		for left--; set.IsSet(last + 1); left-- {
			last++
		}
		if last > cpu {
			part += "-" + strconv.Itoa(last)
		}
		parts, cpu = append(parts, part), last
	}
	return strings.Join(parts, ","), nil
}
