package fingerprint

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"enginebroker/matrix"
	"enginebroker/matrix/regular"
)

// Removed stands where a secret was. That something was set is recorded, what it was never is.
const Removed = "(removed)"

// secretWords are the parts of a name that make its value a secret. "tokens" is not one of them: engines count tokens.
var secretWords = []string{"key", "keys", "apikey", "accesskey", "token", "secret", "secrets", "password", "passwd", "passphrase", "pass", "pwd",
	"credential", "credentials", "auth", "authorization", "bearer", "cookie", "cookies", "session", "signature", "hft", "dsn"}

// harmless names hold one of the words and no secret.
var harmless = []string{"token_ids", "eos_token", "bos_token", "pad_token", "key_length", "seed_key"}

func secretName(name string) bool {
	name = strings.ToLower(strings.Trim(name, "-_ "))
	name = strings.NewReplacer("-", "_", ".", "_", " ", "_").Replace(name)
	if slices.Contains(harmless, name) {
		return false
	}
	return slices.ContainsFunc(strings.Split(name, "_"), func(w string) bool {
		return slices.Contains(secretWords, w) || strings.HasSuffix(w, "apikey") || strings.HasSuffix(w, "password")
	})
}

// secretText are forms of secrets that give themselves away wherever they stand.
var secretText = []struct {
	form *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b(hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|nvapi-|xox[abp]-|AKIA|ASIA|AIza|ya29\.)[A-Za-z0-9_\-]{8,}`), Removed},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]*)?`), Removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9_\-+/=.~]+`), "$1 " + Removed},
	{regexp.MustCompile(`([a-z][a-z0-9+.\-]*://)[^/\s@]+@`), "${1}" + Removed + "@"},
	{regexp.MustCompile(`(?i)(["']?[\w.-]*(?:api[_-]?key|secret|password|passwd|credential|authorization|access[_-]?key|auth[_-]?token|hf[_-]?token)["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s,;&}"']+)`), "${1}" + Removed},
	{regexp.MustCompile(`(["'](?:token|key|auth)["']\s*:\s*)("[^"]*"|'[^']*')`), "${1}" + Removed},
	{regexp.MustCompile(`([?&](?:token|key|sig|signature)=)[^&\s]+`), "${1}" + Removed},
}

var longWord = regexp.MustCompile(`[A-Za-z0-9+=_\-]{32,}`)

// scrubText removes what looks like a secret by itself, among them long words that mix cases and digits as keys do and names
// and digests do not.
func scrubText(s string) string {
	for _, t := range secretText {
		s = t.form.ReplaceAllString(s, t.with)
	}
	return longWord.ReplaceAllStringFunc(s, func(w string) string {
		var lower, upper, digit, dash int
		for _, r := range w {
			switch {
			case r >= 'a' && r <= 'z':
				lower++
			case r >= 'A' && r <= 'Z':
				upper++
			case r >= '0' && r <= '9':
				digit++
			default:
				dash++
			}
		}
		// A random key of 32 characters has some 5 digits and 13 of each case, and hardly a separator.
		if lower >= 6 && upper >= 6 && digit >= 2 && dash <= 2 {
			return Removed
		}
		return w
	})
}

// longFlag is what follows a flag without a value, such as --enable-auth.
var longFlag = regexp.MustCompile(`^--[a-z]`)

// ScrubArgv returns argv without secrets.
func ScrubArgv(argv []string) []string {
	out := make([]string, len(argv))
	next := false
	for i, a := range argv {
		at := strings.IndexAny(a, "= ") // a flag and its value may have been written as one word
		joined, name := at >= 0, a
		if joined {
			name = a[:at]
		}
		switch {
		case next && !longFlag.MatchString(a):
			out[i], next = Removed, false
			continue
		case strings.HasPrefix(a, "-") && joined && secretName(name):
			out[i] = a[:at+1] + Removed
		default:
			out[i] = scrubText(a)
		}
		next = strings.HasPrefix(a, "-") && !joined && secretName(name)
	}
	return out
}

// variable is an assignment among the arguments of a container's command line.
var variable = regexp.MustCompile(`^((?:--env=|-e=?)?([A-Z][A-Z0-9_]*)=).`)

// ScrubSettings returns the settings of an instance without secrets. Where one was stands a digest of the setting, so that
// another secret still is another setting.
func ScrubSettings(settings map[string]string) map[string]string {
	out := maps.Clone(settings)
	for k, v := range settings {
		var clean string
		if env, ok := strings.CutPrefix(k, "env."); ok && secretName(env) {
			clean = Removed
		} else {
			clean = scrubList(v)
		}
		if clean != v {
			out[k] = clean + " sha256:" + digestText(v)
		}
	}
	return out
}

// scrubList scrubs a setting that may be a list of arguments: comma-separated, or a JSON array.
func scrubList(v string) string {
	var list []string
	if !strings.HasPrefix(v, "[") || json.Unmarshal([]byte(v), &list) != nil {
		list = strings.Split(v, ",")
	}
	clean := ScrubArgv(list)
	for i, a := range clean {
		if m := variable.FindStringSubmatch(a); m != nil && secretName(m[2]) {
			clean[i] = m[1] + Removed
		}
	}
	if slices.Equal(clean, list) {
		return v
	}
	return strings.Join(clean, ",")
}

// allowed are the variables that change what an engine does; all others are never recorded.
var allowed = regexp.MustCompile(`^((VLLM|SGLANG|SGL|VT|GGML|LLAMA|CUDA|NVIDIA|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|TILELANG|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|MALLOC|CUBLAS|CUDNN|CUBLASLT|UCX|NVTE)_.*|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|HF_HOME|HF_HUB_CACHE|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|PYTHONHASHSEED|VIRTUAL_ENV|XDG_CACHE_HOME|MALLOC_ARENA_MAX|TOKENIZERS_PARALLELISM)$`)

// ScrubEnv returns the allowed variables of an environment, without secrets.
func ScrubEnv(env map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range env {
		switch {
		case !allowed.MatchString(k):
		case secretName(k):
			out[k] = Removed
		default:
			out[k] = scrubText(v)
		}
	}
	return out
}

// launchFacts records the command line flag by flag, and the allowed environment.
func launchFacts(p *process) matrix.Facts {
	var facts matrix.Facts
	argv := ScrubArgv(p.argv)
	where := p.dir + "/cmdline"
	argv = argv[min(p.programArg()+1, len(argv)):]
	for i := 0; i < len(argv); i++ {
		if !strings.HasPrefix(argv[i], "-") || len(argv[i]) < 2 {
			continue
		}
		name, value, joined := strings.Cut(argv[i], "=")
		if !joined && i+1 < len(argv) && !isFlag(argv[i+1]) {
			i++
			value = argv[i]
		}
		name = strings.TrimLeft(name, "-")
		facts = append(facts, observed(FactFlag+name, value, where))
		if name == "chat-template" || name == "chat-template-file" {
			facts = append(facts, p.template(value, where+" "+argv[i]))
		}
	}
	for k, v := range ScrubEnv(p.env) {
		facts = append(facts, observed(FactEnv+k, v, p.dir+"/environ"))
	}
	return sorted(facts)
}

// maxTemplate bounds a chat template that is read; those of today's models have some 10 KiB [own].
const maxTemplate = 1 << 20

// template is the chat template that a flag puts in the place of the checkpoint's own: a file, or the text itself. The flag's
// value is a location and says nothing (bugs.md N31).
func (p *process) template(value, where string) matrix.Fact {
	file := value
	if !filepath.IsAbs(file) {
		file = filepath.Join(p.cwd, file)
	}
	if b, err := regular.ReadFile(p.inside(file), maxTemplate); err == nil {
		value, where = string(b), file
	}
	return observed(matrix.FactChatTemplate, digestText(value), where)
}

// isFlag tells a flag from a value: -1 is a number.
func isFlag(s string) bool {
	return len(s) > 1 && s[0] == '-' && (s[1] < '0' || s[1] > '9')
}
