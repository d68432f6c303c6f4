// Command vllm is the adapter of vLLM (engine.v1).
//
// Its stance: what is installed decides what vLLM can do, and its own endpoints decide what it did. So versions are read from
// the package metadata of the interpreter that would run it, flags from that build's --help, and dtype, quantization, limits,
// prefix cache and speculation from /server_info after the start; that no prompt is cached is shown by two equal prompts and
// by the counters. /health and /v1/models stay 200 while the worker hangs (engines.md C8): only a generated token proves life.
//
// The way of a start: locate the environment, check the artifact, translate the request into flags that this build knows,
// launch in private compile caches, wait for a token, read back, compare, prove.
package main

import (
	"enginebroker/engines"
	"enginebroker/engines/plugin"
)

func main() {
	plugin.Serve(func() engines.Engine { return newEngine() })
}
