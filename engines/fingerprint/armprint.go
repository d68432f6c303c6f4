package fingerprint

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"enginebroker/matrix"
)

// identity are the facts that make an arm what it is (protocol §1, arm_print); a name ending in a dot takes the facts below it.
var identity = []string{
	matrix.FactEngine, matrix.FactVersion, matrix.FactCommit, matrix.FactBuild, matrix.FactBackend, matrix.FactQuantization,
	matrix.FactComputeDtype, matrix.FactActivationDtype, matrix.FactKVDtype, matrix.FactPrefixCache, matrix.FactSpeculation,
	matrix.FactContextTokens, matrix.FactConcurrency, matrix.FactChatTemplate, matrix.FactImage, matrix.FactSleepOnIdle,
	FactFlag, FactEnv, FactConfig, FactKernel, FactDriver, FactCUDA,
}

// incidentalName matches flags and variables that change from launch to launch and change nothing of the engine.
var incidentalName = regexp.MustCompile(`(?i)(^|[-_])(port|host|host_ip|uds|pid-file|log-(file|dir|config-file))$|^(a|alias|served-model-name)$`)

// ArmPrint is the digest of what was observed of an arm: build, backends, resolved quantization, precision, configuration read
// back, flags and environment. Paths, ports, process numbers and times are not in it, nor is anything only claimed; so one arm
// has one print over all its loads. Caches are left out too: warming them is not another arm.
func ArmPrint(facts matrix.Facts) (string, error) {
	var in [][2]string
	for _, f := range facts {
		if f.Standing == matrix.Observed && identifies(f) {
			in = append(in, [2]string{f.Name, f.Value})
		}
	}
	slices.SortFunc(in, func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return matrix.Digest(slices.Compact(in))
}

func identifies(f matrix.Fact) bool {
	if !slices.ContainsFunc(identity, func(n string) bool {
		return f.Name == n || strings.HasSuffix(n, ".") && strings.HasPrefix(f.Name, n)
	}) {
		return false
	}
	return !isLocation(f.Name, f.Value)
}

// isLocation reports a flag or variable that says only where something lies or listens.
func isLocation(name, value string) bool {
	for _, prefix := range []string{FactFlag, FactEnv} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return incidentalName.MatchString(rest) || isPath(value)
		}
	}
	return false
}

// isPath tells a value that only says where something lies.
func isPath(v string) bool {
	return strings.HasPrefix(v, "/") || strings.HasPrefix(v, "./") || strings.HasPrefix(v, "../") || strings.HasPrefix(v, "~/")
}
