// Command sglang is the adapter of SGLang (engine.v1).
//
// Its stance: SGLang says more of itself than any other engine (/server_info needs no switch), and lies in the small: it
// accepts and echoes a wrong model name, its /health generates a token, /v1/models answers before it can generate, and near
// the context it shortens in silence (engines.md D8). So the model is compared by path in /model_info, life is a connection
// and a process, and what is in effect is read from /server_info and the log, never from what was asked.
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
