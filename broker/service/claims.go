package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines/pins"
	"enginebroker/matrix"
	"enginebroker/matrix/external"
	"enginebroker/matrix/regular"
	"enginebroker/matrix/verdict"
)

// Claim and Figure are figures that others published, as callers see them. Their values are text: nothing is divided by them.
type (
	Claim  = pins.Claim
	Figure = pins.Figure
)

// Claims lists what others published, of one model or of all, by name.
func (s *Service) Claims(_ context.Context, model string) ([]Claim, error) {
	if s.cfg.Claims == "" {
		return nil, nil
	}
	set, err := pins.LoadClaims(s.cfg.Claims)
	if err != nil {
		return nil, &Error{Cause: CauseUsage, Err: err}
	}
	var out []Claim
	for _, n := range slices.Sorted(maps.Keys(set)) {
		if c := set[n]; model == "" || strings.EqualFold(c.Model, model) {
			out = append(out, c)
		}
	}
	return out, nil
}

// AddClaim keeps a published figure. What its source leaves open is unknown, and one that exists is not replaced.
func (s *Service) AddClaim(_ context.Context, c Claim) (Claim, error) {
	if s.cfg.Claims == "" {
		return c, fail(CauseUsage, "name a folder under claims in broker.yaml", "the configuration has no folder of claims")
	}
	for _, f := range []*string{&c.Policy, &c.PrefixCache, &c.Nodes, &c.Clock} {
		*f = cmp.Or(*f, "unknown")
	}
	if err := pins.RecordClaim(s.cfg.Claims, c); err != nil {
		return c, &Error{Cause: CauseUsage, Err: err}
	}
	return c, nil
}

// ImportClaim keeps the figures of a result file that somebody published. What the tool is known to count wrongly is
// unverified, and so is what its file does not say.
func (s *Service) ImportClaim(ctx context.Context, c Claim, path string) (Claim, error) {
	f, err := regular.Open(path)
	if err != nil {
		return c, &Error{Cause: CauseUsage, Err: err}
	}
	defer f.Close()
	results, err := external.Read(f)
	if err != nil {
		cause := CauseUsage
		if !errors.Is(err, external.ErrUnknown) {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return c, &Error{Cause: cause, Err: err}
	}
	for _, r := range results {
		c.Model = cmp.Or(c.Model, r.Model)
		c.Figures = append(c.Figures, figures(r)...)
		for _, w := range r.Warnings {
			c.Unverified = append(c.Unverified, r.Tool+": "+w)
		}
		for _, m := range r.Missing {
			c.Unverified = append(c.Unverified, "not in the file: "+m)
		}
	}
	slices.Sort(c.Unverified)
	c.Unverified = slices.Compact(c.Unverified)
	return s.AddClaim(ctx, c)
}

// figures are the numbers of a result as text, under the formula of the tool that computed them.
func figures(r matrix.Imported) []Figure {
	var out []Figure
	for _, n := range r.Numbers {
		f := Figure{Metric: n.Name, Value: strconv.FormatFloat(n.Value, 'g', -1, 64), Unit: n.Unit, Condition: r.Formula, Field: n.Field}
		if k, ok := r.Concurrency.Get(); ok {
			f.Concurrency = strconv.FormatInt(k, 10)
		}
		out = append(out, f)
	}
	return out
}

// Inconsistent says which published ratios are not the ratio of the figures they stand beside (protocol §6). A ratio stands
// beside its figures where its unit is A/B, the two of them. What rounding to the digits that were printed can do is no error
// of the source.
func Inconsistent(c Claim) ([]matrix.CellReason, error) {
	var out []matrix.CellReason
	for _, f := range c.Figures {
		first, second, ok := strings.Cut(f.Unit, "/")
		a, ok1 := printedNumber(first)
		b, ok2 := printedNumber(second)
		stated, ok3 := printedNumber(f.Value)
		if !ok || !ok1 || !ok2 || !ok3 {
			continue
		}
		reasons, err := verdict.Published(verdict.Session{A: verdict.Figures{Median: a.value, Spread: math.Exp(a.rounding + stated.rounding), N: 1},
			B: verdict.Figures{Median: b.value, Spread: math.Exp(b.rounding), N: 1}, Ratio: matrix.Some(stated.value)})
		if err != nil {
			return nil, &Error{Cause: CauseUsage, Err: fmt.Errorf("claim %s: %s: %w", c.Name, f.Metric, err)}
		}
		for i := range reasons {
			reasons[i].Detail = f.Metric + ": " + reasons[i].Detail
		}
		out = append(out, reasons...)
	}
	return out, nil
}

// figureAs is a published number and the share by which its last digit may have been rounded.
type figureAs struct{ value, rounding float64 }

func printedNumber(text string) (figureAs, bool) {
	text = strings.TrimLeft(strings.TrimSpace(text), "~≈")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return figureAs{}, false
	}
	_, digits, _ := strings.Cut(text, ".")
	return figureAs{v, 0.5 * math.Pow10(-len(digits)) / v}, true
}
