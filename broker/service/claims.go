package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"enginebroker/engines/pins"
	"enginebroker/matrix"
	"enginebroker/matrix/external"
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
	f, err := os.Open(path)
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
