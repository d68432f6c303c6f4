package negotiate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// UnknownError is a name that nothing goes by.
type UnknownError struct {
	What  string // what kind of name: engine of pair a:b, quantization of model m
	Name  string
	Known []string // all there are, sorted
	Near  []string // those it may have meant, nearest first
}

func (e *UnknownError) Error() string {
	s := "unknown " + e.What + " " + strings.TrimSpace(e.Name)
	if len(e.Near) > 0 {
		return s + "; did you mean " + strings.Join(e.Near, " or ") + "?"
	}
	return s + "; known are " + strings.Join(e.Known, ", ")
}

// unknown names at most three known names within a third of their length of the one given.
func unknown(what, name string, known []string) error {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	distance := func(k string) int { return levenshtein.ComputeDistance(strings.ToLower(name), strings.ToLower(k)) }
	near := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return distance(k) > max(2, len(k)/3) })
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return &UnknownError{What: what, Name: name, Known: known, Near: near[:min(3, len(near))]}
}
