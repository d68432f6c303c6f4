package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"enginebroker/matrix"
	enginev1 "enginebroker/proto/gen/engine/v1"
	telemetryv1 "enginebroker/proto/gen/telemetry/v1"
)

// words relates the words of an enum to its numbers on the wire. Empty is an absent field; anything unknown is an error.
type words[M ~string, P ~int32] struct {
	name string
	of   map[M]P
}

var (
	standings = words[matrix.Standing, enginev1.Standing]{"standing", map[matrix.Standing]enginev1.Standing{
		matrix.Observed: enginev1.Standing_STANDING_OBSERVED,
		matrix.Claimed:  enginev1.Standing_STANDING_CLAIMED,
	}}
	statuses = words[matrix.Status, enginev1.Status]{"status", map[matrix.Status]enginev1.Status{
		matrix.StatusOK:      enginev1.Status_STATUS_OK,
		matrix.StatusClaimed: enginev1.Status_STATUS_CLAIMED,
		matrix.StatusOwed:    enginev1.Status_STATUS_OWED,
		matrix.StatusRefused: enginev1.Status_STATUS_REFUSED,
	}}
	policyKinds = words[matrix.PolicyKind, enginev1.PolicyKind]{"policy", map[matrix.PolicyKind]enginev1.PolicyKind{
		matrix.Raw:     enginev1.PolicyKind_POLICY_KIND_RAW,
		matrix.Drafted: enginev1.PolicyKind_POLICY_KIND_DRAFTED,
	}}
	countKinds = words[matrix.CountKind, enginev1.CountKind]{"count kind", map[matrix.CountKind]enginev1.CountKind{
		matrix.CountExact:      enginev1.CountKind_COUNT_KIND_EXACT,
		matrix.CountLossy:      enginev1.CountKind_COUNT_KIND_LOSSY,
		matrix.CountCumulative: enginev1.CountKind_COUNT_KIND_CUMULATIVE,
	}}
	availabilities = words[matrix.ReadingStatus, telemetryv1.Availability]{"reading status", map[matrix.ReadingStatus]telemetryv1.Availability{
		matrix.ReadingValue:        telemetryv1.Availability_AVAILABILITY_VALUE,
		matrix.ReadingNotSupported: telemetryv1.Availability_AVAILABILITY_NOT_SUPPORTED,
		matrix.ReadingNoPermission: telemetryv1.Availability_AVAILABILITY_NO_PERMISSION,
		matrix.ReadingAbsent:       telemetryv1.Availability_AVAILABILITY_ABSENT,
		matrix.ReadingError:        telemetryv1.Availability_AVAILABILITY_ERROR,
		matrix.ReadingStale:        telemetryv1.Availability_AVAILABILITY_STALE,
	}}
)

// encode returns nil for an empty word.
func (w words[M, P]) encode(e enc, about string, m M) *P {
	if m == "" {
		return nil
	}
	p, ok := w.of[m]
	if !ok {
		e.fail(fmt.Errorf("%s %s is %q, not one of %s", about, w.name, m, w.list()))
		return nil
	}
	return &p
}

func (w words[M, P]) decode(d dec, about string, p *P) M {
	if p == nil {
		return ""
	}
	for m, n := range w.of {
		if n == *p {
			return m
		}
	}
	d.fail(fmt.Errorf("%s %s has the unknown number %d; this build knows %s", about, w.name, *p, w.list()))
	return ""
}

func (w words[M, P]) list() string {
	var all []string
	for _, m := range slices.Sorted(maps.Keys(w.of)) {
		all = append(all, string(m))
	}
	return strings.Join(all, ", ")
}
