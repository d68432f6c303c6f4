// Command simulated is an engine plugin without an engine: it speaks any of the four dialects over real HTTP, with times,
// load states and faults that its settings say. Whatever it serves is stamped SIMULATED.
//
// Its server is this binary again, in a process of its own, so that start, stop, absence and death are those of an engine:
//
//	simulated serve --addr 127.0.0.1:9000 --ttft 50ms --itl 20ms
package main

import (
	"fmt"
	"os"

	"enginebroker/engines"
	"enginebroker/engines/plugin"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			if err := serve(os.Args[2:], os.Stderr); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case "worker":
			worker()
			return
		}
	}
	plugin.Serve(func() engines.Engine { return New() })
}
