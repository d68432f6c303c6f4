package vectors

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

func name(path string) string {
	if path == "" {
		return "expect"
	}
	return path
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

func sameSet(a, b []any) bool {
	keys := func(xs []any) []string {
		out := make([]string, len(xs))
		for i, x := range xs {
			out[i] = fmt.Sprint(x)
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(keys(a), keys(b))
}

// text shows a value, shortened.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if s := []rune(string(b)); len(s) > 200 {
		return string(s[:200]) + "…"
	}
	return string(b)
}
