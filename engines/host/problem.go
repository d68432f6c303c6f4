package host

import (
	"strings"

	"enginebroker/engines"
)

// Kind says what is wrong with a plugin.
type Kind string

// What can be wrong with a plugin before it answers, and after.
const (
	Missing       Kind = "missing"        // no such file
	NotExecutable Kind = "not_executable" // a file the kernel will not run
	Checksum      Kind = "checksum"       // not the bytes that were pinned or found
	Stdout        Kind = "stdout"         // something else than the handshake came first on stdout
	Protocol      Kind = "protocol"       // no common protocol version
	WrongKind     Kind = "wrong_kind"     // a telemetry plugin where an engine was asked for, or the reverse
	Died          Kind = "died"           // its process ended
	Hung          Kind = "hung"           // it did not answer within the limit
	Settings      Kind = "settings"       // the plugin's own schema refuses the settings
	Refused       Kind = "refused"        // it answered Describe or Configure with an error of its own
)

// Problem is one plugin that cannot be used, and what to do about it. The others go on without it.
type Problem struct {
	Plugin  string // path of the executable, or the directory that could not be read
	Label   string // instance, empty where none was asked for yet
	Kind    Kind
	Message string
	Fix     string
	Fields  []engines.FieldError // of Settings
	Known   []string             // settings that the plugin has, of Settings
	Err     error                // cause, may be nil
}

// Error is one line that names the plugin and the fix.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString("plugin " + p.Plugin)
	if p.Label != "" {
		b.WriteString(" (" + p.Label + ")")
	}
	b.WriteString(": " + p.Message)
	if p.Fix != "" {
		b.WriteString(" (" + p.Fix + ")")
	}
	return b.String()
}

func (p *Problem) Unwrap() error { return p.Err }
