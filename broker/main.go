// Command broker decides which of several LLM inference engines is faster on one machine, and says when it cannot know.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"enginebroker/broker/cli"
)

func main() {
	// The first signal ends the run in good order; stop() then restores the default, so that a second one ends it at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, cli.OS()))
}
