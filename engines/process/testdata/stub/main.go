// Command stub is a server that misbehaves on request. Modes may be combined with commas:
//
//	listen       serve HTTP on -port
//	reuseport    the same, sharing the port (SO_REUSEPORT)
//	ignoreterm   ignore SIGTERM
//	fork         leave a grandchild in its own session, renamed, reparented away
//	strip        that grandchild carries no variable of the environment
//	worker       leave a plain child that ignores SIGTERM
//	restart      start a copy that serves HTTP on -port, and exit 0
//	exit         print a root cause, more lines, and exit 3
//	spam         write log lines until killed
//	env          print the environment and the working directory, then wait
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	port := flag.Int("port", 0, "")
	mode := flag.String("mode", "", "")
	flag.Parse()
	has := func(m string) bool { return strings.Contains(","+*mode+",", ","+m+",") }

	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	switch {
	case has("exit"):
		fmt.Println("engine: CUDA error: out of memory at layer 7")
		for i := range 300 {
			fmt.Println("traceback line", i)
		}
		fmt.Println("engine: initialization failed, see above")
		os.Exit(3)
	case has("env"):
		dir, _ := os.Getwd()
		fmt.Println("cwd", dir)
		for _, kv := range os.Environ() {
			fmt.Println("env", kv)
		}
	case has("grandchild"):
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(nameOf("VLLM::Worker")), 0, 0, 0)
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stub: child up")
		select {}
	case has("restart"):
		start("listen", false, true, fmt.Sprintf("-port=%d", *port))
		os.Exit(0)
	case has("between"): // dies at once, so that what it starts is orphaned
		start("grandchild", has("strip"), true)
		os.Exit(0)
	}
	if has("fork") {
		between := "between"
		if has("strip") {
			between += ",strip"
		}
		_ = start(between, false, true).Wait()
	}
	if has("worker") {
		start("grandchild", false, false)
	}
	if has("listen") || has("reuseport") {
		lc := net.ListenConfig{}
		if has("reuseport") {
			lc.Control = func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			}
		}
		l, err := lc.Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", *port))
		if err != nil {
			fmt.Println("stub:", err)
			os.Exit(1)
		}
		go func() {
			_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, os.Getpid()) }))
		}()
	}
	fmt.Println("stub: up")
	for has("spam") {
		fmt.Println("a line that fills the log, over and over again")
	}
	for range term {
		if !has("ignoreterm") {
			fmt.Println("stub: bye")
			os.Exit(0)
		}
	}
}

func start(mode string, strip, session bool, more ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"-mode", mode}, more...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if strip {
		cmd.Env = []string{}
	}
	if err := cmd.Start(); err != nil {
		fmt.Println("stub:", err)
		os.Exit(1)
	}
	return cmd
}
