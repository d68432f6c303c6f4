package openai

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Removed stands for a secret in a record.
const Removed = "[removed]"

// secretName matches the names of flags and variables whose values are secrets. max_tokens and tokenizer are none.
var secretName = regexp.MustCompile(`(?i)(^|[-_.])(api[-_]?keys?|apikey|token|secret|password|passwd|credentials?|authorization|access[-_]?key|private[-_]?key|key)($|[-_.]file$)`)

// IsSecretName reports whether a flag or variable of this name holds a secret.
func IsSecretName(name string) bool { return secretName.MatchString(strings.TrimLeft(name, "-")) }

// ScrubArgv returns argv with the values of secret flags and the passwords of URLs removed.
func ScrubArgv(argv []string) []string {
	out := slices.Clone(argv)
	for i, a := range out {
		name, _, hasValue := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "-") && IsSecretName(name) && hasValue:
			out[i] = name + "=" + Removed
		case i > 0 && strings.HasPrefix(argv[i-1], "-") && !strings.Contains(argv[i-1], "=") && IsSecretName(argv[i-1]) && !strings.HasPrefix(a, "--"):
			out[i] = Removed
		default:
			out[i] = scrubURL(a)
		}
	}
	return out
}

// ScrubEnv returns env with the values of secret variables and the passwords of URLs removed.
func ScrubEnv(env map[string]string) map[string]string {
	out := maps.Clone(env)
	for name, value := range out {
		if IsSecretName(name) {
			out[name] = Removed
		} else {
			out[name] = scrubURL(value)
		}
	}
	return out
}

func scrubURL(s string) string {
	if !strings.Contains(s, "://") || !strings.Contains(s, "@") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil || u.User == nil {
		return s
	}
	u.User = url.User(Removed)
	return u.String()
}
