package run

import (
	"strings"

	"enginebroker/matrix"
)

// selfMatchPrompt is asked twice of an artifact that has no question of its own.
const selfMatchPrompt = "the cat in an old house sat by the window and"

// shown bounds what a record keeps of a canary's text.
const shown = 400

func judgeCanary(when, answer string, q matrix.Request) matrix.CanaryResult {
	return matrix.CanaryResult{When: when, Want: answer, Got: head(q), Rate: rate(q),
		OK: q.Outcome == matrix.OutcomeOK && strings.Contains(q.Text, answer)}
}

func selfMatch(when string, a, b matrix.Request) matrix.CanaryResult {
	r := matrix.CanaryResult{When: when, Want: "self-match", Got: head(a), Rate: rate(a)}
	r.OK = a.Outcome == matrix.OutcomeOK && b.Outcome == matrix.OutcomeOK && a.Text == b.Text && a.Text != ""
	if !r.OK && a.Text != b.Text {
		r.Got = head(a) + " ≠ " + head(b)
	}
	return r
}

func head(q matrix.Request) string {
	if q.Outcome != matrix.OutcomeOK {
		return string(q.Outcome) + " " + strings.Join(q.Reasons, ",") + " " + q.Error
	}
	if len(q.Text) > shown {
		return q.Text[:shown] + "…"
	}
	return q.Text
}

// rate is decoded tokens per second over [first token, last token]: (n − n₁)/(t_last − t_first), the reciprocal of TPOT broker/1.
func rate(q matrix.Request) matrix.Opt[float64] {
	n, ok1 := q.CompletionTokens.Get()
	first, ok2 := q.FirstToken.Get()
	last, ok3 := q.LastToken.Get()
	n1 := q.FirstTokens.Or(1)
	if !ok1 || !ok2 || !ok3 || last <= first || n <= n1 {
		return matrix.Opt[float64]{}
	}
	return matrix.Some(float64(n-n1) / (float64(last-first) / 1e9))
}

// merge lays the later observations over the earlier ones; absent ones do not hide what was seen.
func merge(a, b matrix.Env) matrix.Env {
	out := a
	for _, f := range []struct{ dst, src *matrix.Opt[int64] }{
		{&out.ForeignGPU, &b.ForeignGPU}, {&out.MemBaselineKiB, &b.MemBaselineKiB}, {&out.MemBeforeKiB, &b.MemBeforeKiB}, {&out.ResidentPages, &b.ResidentPages},
		{&out.ThermalDelta, &b.ThermalDelta}, {&out.SwapDelta, &b.SwapDelta}, {&out.PeakMemDeltaKiB, &b.PeakMemDeltaKiB}, {&out.EnergyMilliJoule, &b.EnergyMilliJoule},
	} {
		if f.src.Present() {
			*f.dst = *f.src
		}
	}
	for _, f := range []struct{ dst, src *matrix.Opt[float64] }{{&out.LoadAverage, &b.LoadAverage}, {&out.ForeignCPU, &b.ForeignCPU}, {&out.Steal, &b.Steal}} {
		if f.src.Present() {
			*f.dst = *f.src
		}
	}
	out.ThermalOffset = a.ThermalOffset || b.ThermalOffset
	out.GPULost = a.GPULost || b.GPULost
	out.HostVanished = a.HostVanished || b.HostVanished
	if b.KilledByHost != "" {
		out.KilledByHost = b.KilledByHost
	}
	if b.BootIDStart != "" {
		out.BootIDStart = b.BootIDStart
	}
	if b.BootIDEnd != "" {
		out.BootIDEnd = b.BootIDEnd
	}
	out.Unevaluable = append(append([]string(nil), a.Unevaluable...), b.Unevaluable...)
	return out
}
