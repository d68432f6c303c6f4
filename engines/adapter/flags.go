package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"enginebroker/engines/fingerprint"
	"enginebroker/engines/openai"
	"enginebroker/engines/process"
	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Flag is one argument of a fair run.
type Flag struct {
	Name  string   // the spelling of today
	Value string   // empty: a switch
	Why   string   // what it secures
	Also  []string // other spellings of the builds seen; the first that a build knows is used
}

// Arg is a flag with a value.
func Arg(name, value, why string, also ...string) Flag { return Flag{name, value, why, also} }

// Switch is a flag without one.
func Switch(name, why string, also ...string) Flag { return Flag{name, "", why, also} }

func (f Flag) spellings() []string { return append([]string{f.Name}, f.Also...) }

// Build is what one build says of its flags.
type Build struct {
	Known map[string]bool
	Help  string // the command that lists them
}

// Arguments writes the flags of a fair run as this build spells them, and the setting extra_args behind them. Every flag
// must be known to the build, or be waived: a flag that is left out in silence would leave the engine's default in force.
func (b Build) Arguments(flags []Flag, v openai.Values) (argv, waived []string, err error) {
	waive := v.List("waive")
	for _, f := range flags {
		names := f.spellings()
		i := slices.IndexFunc(names, func(n string) bool { return b.Known[n] })
		switch {
		case i >= 0 && f.Value != "":
			argv = append(argv, names[i], f.Value)
		case i >= 0:
			argv = append(argv, names[i])
		case slices.ContainsFunc(names, func(n string) bool { return slices.Contains(waive, n) }):
			waived = append(waived, f.Name)
		default:
			x := Unsupported("this build does not know %s, which secures %s", strings.Join(names, " or "), f.Why)
			x.Fix = "use another build, or waive the flag where the build predates the feature (setting waive)"
			return nil, nil, x
		}
	}
	for _, a := range v.List("extra_args") {
		if name := FlagName(a); isFlag(a) && !b.Known[name] {
			x := Unsupported("this build does not know %s of extra_args", fingerprint.ScrubArgv([]string{name})[0])
			x.Fix = "see " + b.Help
			return nil, nil, x
		}
		argv = append(argv, a)
	}
	return argv, waived, nil
}

// Unsupported is the refusal of something that the engine or this build has no flag for.
func Unsupported(format string, args ...any) *matrix.StartFailure {
	return &matrix.StartFailure{Code: "unsupported_flag", Phase: "launch", Message: fmt.Sprintf(format, args...)}
}

// CheckRequest refuses what no adapter here starts: a server without a named context, or with a prefix cache.
func CheckRequest(r matrix.StartRequest) error {
	if r.Limits.ContextTokens <= 0 {
		return &matrix.StartFailure{Code: "limits", Phase: "launch", Message: "the request names no context per request"}
	}
	if r.PrefixCache != "off" && r.PrefixCache != "" {
		return Unsupported("prefix cache %s is not offered, only off", r.PrefixCache)
	}
	return nil
}

// queryLimit bounds a native program's --version and --help, which take 10 to 25 ms.
const queryLimit = 3 * time.Second

// Ask runs a command that prints and exits, with an empty environment, and returns both its outputs.
func Ask(ctx context.Context, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, os.TempDir(), time.Second
	out, err := cmd.CombinedOutput() // llama-server prints --version to stderr alone
	if err != nil {
		return "", fmt.Errorf("%s: %w: %.300s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// Executable reports a file that may be executed.
func Executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir() && st.Mode()&0o111 != 0
}

// Help is the --help of a Python engine, which imports the whole of it: some ten seconds on an idle desktop, a minute on two
// busy cores. It is read once per build.
type Help struct {
	Command []string
	Image   *process.Container // Command are then the arguments of its server; nil: an installation
	Env     map[string]string  // beside PATH and HOME
	Key     string             // of the build
	Must    string             // a flag that every build has; without it the text is no help
}

const (
	helpLimit = 3 * time.Minute
	maxHelp   = 4 << 20 // bytes of a list of flags [own]; vLLM's has some 200 KB
)

// Read returns the flags that the build knows, kept in the cache directory where there is one.
func (h Help) Read(ctx context.Context, cacheDir string) (Build, error) {
	b := Build{Help: strings.Join(h.Command, " ")}
	if h.Image != nil {
		b.Help += " in image " + h.Image.Image
	}
	path := filepath.Join(cacheDir, "help-"+h.Key[:16]+".txt")
	if cacheDir != "" {
		if text, err := regular.ReadFile(path, maxHelp); err == nil {
			if b.Known = ParseHelp(string(text)); len(b.Known) > 0 {
				return b, nil
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, helpLimit)
	defer cancel()
	out, err := h.ask(ctx)
	b.Known = ParseHelp(out)
	if err == nil && !b.Known[h.Must] {
		err = errors.New("no list of flags, as it lacks " + h.Must)
	}
	switch {
	case ctx.Err() != nil:
		return b, fmt.Errorf("%s: %w", b.Help, context.Cause(ctx))
	case err != nil:
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return b, fmt.Errorf("%s: %w: %s", b.Help, err, lines[len(lines)-1])
	case cacheDir != "":
		if err := errors.Join(os.MkdirAll(cacheDir, 0o755), os.WriteFile(path, []byte(out), 0o644)); err != nil {
			return b, fmt.Errorf("cache directory: %w", err)
		}
	}
	return b, nil
}

func (h Help) ask(ctx context.Context) (string, error) {
	env := map[string]string{"HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
	maps.Copy(env, h.Env)
	if h.Image != nil {
		maps.Copy(env, imageUser("/tmp"))
		return h.Image.Help(ctx, env, h.Command...)
	}
	env["PATH"], env["HOME"] = os.Getenv("PATH"), os.Getenv("HOME")
	cmd := exec.CommandContext(ctx, h.Command[0], h.Command[1:]...)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Dir, cmd.WaitDelay = os.TempDir(), time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
