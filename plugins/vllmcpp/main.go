// Command vllmcpp is the adapter of vllm.cpp's server (engine.v1).
//
// Its stance: this engine is young and moves fast, so a build's flags are read from its own --help; its /health answers 200
// after the engine died, so only a generated token proves life; its binary names no commit, so identity is the hash of what
// runs, with the commit of the source tree beside it as a claim. A prompt of token ids kills the engine's loop, so prompts
// are text. What a build does not tell (its context, its cache hits) stays unknown.
package main

import (
	"enginebroker/engines"
	"enginebroker/engines/plugin"
)

func main() {
	plugin.Serve(func() engines.Engine { return newEngine() })
}
