package host

import "os"

// DefaultEnv names the environment variables every plugin gets where they are set: how to find programs, files and a
// container runtime, and the language of messages. What else an engine needs is a setting of its instance, so that it is on
// record.
var DefaultEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
	"XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST",
}

func environment(more []string) []string {
	env := []string{}
	for _, names := range [][]string{DefaultEnv, more} {
		for _, name := range names {
			if v, ok := os.LookupEnv(name); ok {
				env = append(env, name+"="+v)
			}
		}
	}
	return env
}
