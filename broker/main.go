// Command broker decides which of several LLM inference engines is faster on one machine, and says when it cannot know.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"enginebroker/broker/cli"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		cancel() // in good order: drop the leg in flight, stop the engines, keep the evidence
		// A terminal and timeout(1) may deliver one request twice. A later one means it.
		time.Sleep(time.Second)
		signal.Reset()
	}()
	os.Exit(cli.Run(ctx, cli.OS()))
}
