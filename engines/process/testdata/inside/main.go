// Command inside is what containers of the tests run as their first process, by the name it is called: wrapper sets a variable
// and becomes the program that follows, sleep does nothing until it is ended.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "wrapper" && len(os.Args) > 1 {
		err := syscall.Exec(os.Args[1], os.Args[1:], append(os.Environ(), "WRAPPED=1"))
		fmt.Fprintln(os.Stderr, "wrapper:", err)
		os.Exit(1)
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	<-c
}
