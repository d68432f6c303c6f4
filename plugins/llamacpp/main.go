// Command llamacpp is the adapter of llama.cpp's llama-server (engine.v1).
//
// Its stance: llama-server changes with every build, and much of it silently. So nothing is assumed of a build: its flags
// are read from its own --help, its limits, model and speculation from /props and /slots after the start, its compute
// backend from the libraries it has mapped, and that no prompt is cached from two equal prompts. What a build cannot do is
// refused by the name of the flag.
//
// Two ways to be installed: a binary that runs on this system (setting binary), or a Debian tree of its own that is run
// through that tree's loader (setting root), so that a package of a newer system serves on an older one.
package main

import (
	"enginebroker/engines"
	"enginebroker/engines/plugin"
)

func main() {
	plugin.Serve(func() engines.Engine { return newEngine() })
}
