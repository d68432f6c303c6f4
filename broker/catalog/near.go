package catalog

import (
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Near returns the known names that a mistyped one may have meant, nearest first, at most three.
func Near(name string, known []string) []string {
	type hit struct {
		name string
		d    int
	}
	var hits []hit
	low := strings.ToLower(name)
	for _, k := range known {
		kl := strings.ToLower(k)
		d := levenshtein.ComputeDistance(low, kl)
		if strings.HasPrefix(kl, low) || strings.HasPrefix(low, kl) {
			d = min(d, 1)
		}
		if d <= max(2, len(k)/3) {
			hits = append(hits, hit{k, d})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.d - b.d })
	var out []string
	for _, h := range hits[:min(3, len(hits))] {
		out = append(out, h.name)
	}
	return out
}
