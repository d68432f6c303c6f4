package adapter

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines"
	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/matrix"
)

// Rules are what the settings of an engine may be.
type Rules struct {
	Schema    []matrix.Setting
	Forbidden map[string]string // arguments that would make the arm something else than it is recorded as: why, by prefix
	Own       []string          // flags that the adapter sets itself, by every spelling
	Places    []string          // settings that name an installation, which an image takes the place of
	OwnEnv    map[string]string // variables that the adapter sets itself, or that must stay unset, with the reason
	// More calls add for each fault that only this engine has; clean says that there is no other. Nil: no more.
	More func(v openai.Values, clean bool, add func(field, message, fix string))
}

// Reasons that several engines give.
const (
	MultiNode    = "servers over several hosts or ranks are not supported (MULTI_NODE_UNSUPPORTED)"
	PolicyOnly   = "speculation is the policy of the instance, not an argument"
	PrivateCache = "compile caches are private to the build"
)

// Common are the settings that every adapter has, at the end of its schema.
func Common(waiveExample string) []matrix.Setting {
	return []matrix.Setting{
		{Name: "extra_args", Type: "list", Help: "further arguments, none of those that the adapter sets itself"},
		{Name: "waive", Type: "list", Help: "flags of a fair run that this build may lack because it predates the feature" + waiveExample},
		{Name: "env", Type: "map", Help: "variables for the server"},
		{Name: "spare_cpus", Type: "int", Help: "CPUs of the box that the server must not run on, counted from the first: an engine whose idle threads spin leaves them to the client that measures"},
		{Name: "ready_timeout", Type: "duration", Help: "limit of a start; unset: the run's"},
		{Name: "attach", Type: "string", Help: "base URL of a running server; it is described, never started, stopped or compared"},
	}
}

// Check finds every fault of the settings.
func (r Rules) Check(s engines.Settings) []engines.FieldError {
	faults := openai.CheckSettings(r.Schema, s)
	v := openai.NewValues(r.Schema, s)
	add := func(field, msg, fix string) {
		faults = append(faults, engines.FieldError{Field: field, Message: msg, Fix: fix})
	}
	if u := s["attach"]; u != "" {
		if msg := openai.CheckURL(u); msg != "" {
			add("attach", msg, "")
		}
	}
	for _, name := range r.Places {
		if s["image"] != "" && s[name] != "" {
			add(name, "image and "+name+" are both given", "name one installation")
		}
	}
	if n, ok := v.Int("spare_cpus").Get(); ok {
		switch {
		case n < 0:
			add("spare_cpus", s["spare_cpus"]+" is below zero", "")
		case s["image"] != "":
			add("spare_cpus", "a container has CPUs of its own", "give it --cpuset-cpus as an option")
		case s["attach"] != "":
			add("spare_cpus", "an attached server was started by somebody else", "remove it")
		}
	}
	for _, a := range v.List("extra_args") {
		name, shown := FlagName(a), fingerprint.ScrubArgv([]string{a})[0]
		if why := r.forbids(name); why != "" {
			add("extra_args", shown+": "+why, "remove it")
		}
		if slices.Contains(r.Own, name) {
			add("extra_args", shown+": the adapter sets this from the workload and the other settings", "remove it")
		}
	}
	env := v.Map("env")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if why, ok := r.OwnEnv[name]; ok {
			add("env."+name, "is not taken here: "+why, "remove it")
		}
	}
	if r.More != nil {
		r.More(v, len(faults) == 0, add)
	}
	return faults
}

// forbids is the reason of the longest prefix that a flag begins with.
func (r Rules) forbids(flag string) string {
	longest := ""
	for prefix := range r.Forbidden {
		if strings.HasPrefix(flag, prefix) && len(prefix) > len(longest) {
			longest = prefix
		}
	}
	return r.Forbidden[longest]
}

// CheckFraction says what is wrong with a setting that is a fraction above 0 and up to 1; empty: nothing, or unset.
func CheckFraction(v openai.Values, name string) string {
	u := v.Text(name)
	if f, err := strconv.ParseFloat(u, 64); u == "" || err == nil && f > 0 && f <= 1 {
		return ""
	}
	return strconv.Quote(u) + " is not a fraction above 0 and up to 1"
}

// FlagName is the flag that an argument names, by one spelling: without =value and the .key of a JSON value, and with dashes
// for underscores. What is no flag comes back as it is, cut at the =.
func FlagName(a string) string {
	name, _, _ := strings.Cut(a, "=")
	if !strings.HasPrefix(name, "--") {
		return name
	}
	name, _, _ = strings.Cut(name, ".")
	return strings.TrimSuffix(strings.ReplaceAll(name, "_", "-"), "+")
}

// isFlag tells a flag from a value: -1 is a number.
func isFlag(a string) bool { return len(a) > 1 && a[0] == '-' && (a[1] < '0' || a[1] > '9') }
