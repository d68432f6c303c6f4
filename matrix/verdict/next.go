package verdict

import (
	"fmt"
	"math"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/stats"
)

// dedicatedAA is what a dedicated A/A costs: two labels, 6 blocks (protocol §2.4).
const dedicatedAA = 15

// next says the cheapest thing that would release a reason, with its cost in loads (protocol §2.4: S·(2t+1)).
func (x *index) next(code matrix.Reason, p *pairing, blocks int) string {
	one := 2*len(x.in.Plan.Groups[p.group].Arms) + 1
	whole := one * x.sections[x.primary][p.group].target
	loads := x.costing
	switch code {
	case matrix.NoValidBlock, matrix.InsufficientBlocks, matrix.FewBlocks:
		// Superblocks are added to no run by wish, which would be to stop when the answer pleases.
		if least := matrix.MinBlocks / 2; x.sections[x.primary][p.group].target < least {
			return fmt.Sprintf("a series of %d superblocks (--profile standard): %s", least, loads(least*one))
		}
		return fmt.Sprintf("the series again: %s", loads(whole))
	case matrix.TooManyEnvVoids, matrix.CotenantSeries, matrix.ClockSeries, matrix.ClockBootMismatch:
		return fmt.Sprintf("make the box fit (broker doctor names what is not), then the series again: %s", loads(whole))
	case matrix.HarnessFault:
		if p.late() {
			return fmt.Sprintf("the timed client was late more often than a superblock may be run again: free its processors (broker doctor names what is busy), then the series again: %s", loads(whole))
		}
		return fmt.Sprintf("repair what the evidence names, then the series again: %s", loads(whole))
	case matrix.EngineVoidOnRecord:
		again := 0
		for _, v := range x.owed(p) {
			again += len(v.Superblocks)
		}
		return fmt.Sprintf("the series again on a build that does not fail: %s; or, on this boot, an operator re-run that passes (broker rerun): %s", loads(whole), loads(again*one))
	case matrix.AAMissing, matrix.AAEmbeddedOnly:
		return x.aa()
	case matrix.AAFailed:
		return fmt.Sprintf("find what tells two like arms apart; one repeat with a new seed is allowed: %s", loads(dedicatedAA))
	case matrix.CanaryFailed, matrix.PromptTokensMismatch, matrix.IdentityAssertFailed, matrix.MachineMismatch:
		return fmt.Sprintf("repair the arm, then the series again: %s", loads(whole))
	case matrix.OperatorHold:
		return "who knows why it is held lifts it, without a load (broker hold --release)"
	case matrix.AttachedServer:
		return fmt.Sprintf("let the broker launch this server, then the series: %s", loads(whole))
	case matrix.GridInterval:
		return fmt.Sprintf("the series again, on another boot than these: %s", loads(whole))
	case matrix.SingleGrid:
		if x.in.Plan.Grids < 2 {
			return fmt.Sprintf("--profile binding, which adds a confirming grid of %d superblocks on another boot: %s more; or this series again after a reboot, set beside this one by broker compare", matrix.ConfirmationSuperblocks, loads(matrix.ConfirmationSuperblocks*one))
		}
		return fmt.Sprintf("reboot, then broker resume: a confirming grid of %d superblocks, %s", matrix.ConfirmationSuperblocks, loads(matrix.ConfirmationSuperblocks*one))
	case matrix.LoadStateMulti:
		return "find what decides the state at load, and report each state by itself"
	case matrix.LoadStateSuspect:
		return fmt.Sprintf("broker reload of the arm with --loads %d: %s", minReloadClear, loads(minReloadClear+1))
	case matrix.LoadStateUntested:
		return fmt.Sprintf("a confirming grid brings more cold loads (%s), or broker reload on the arm (%s)", loads(matrix.ConfirmationSuperblocks*one), loads(9))
	case matrix.ReferenceNotPin:
		return fmt.Sprintf("declare a pin for the arm, then the series again: %s", loads(whole))
	case matrix.BuildUnrecorded:
		return fmt.Sprintf("record the image digest or the hash of every loaded binary, then the series again: %s", loads(whole))
	case matrix.ClockHeadUnobserved:
		return fmt.Sprintf("pin the clock flat (broker doctor prints how), then the series again: %s", loads(whole))
	case matrix.ThermalStartOffset:
		return "cool the box before the series; the superblocks that started warm again"
	case matrix.BoxUncertified:
		return "a box and profile on which every gate can be evaluated"
	case matrix.Simulated:
		return "a real engine"
	case matrix.NotPreflighted:
		return "broker preflight of the arm: " + loads(1)
	case matrix.TailUndersampled:
		return "a workload with more requests per leg, or a lower percentile"
	case matrix.ITLCoalesced:
		return "none by loads: tokens do not arrive one by one; TPOT stands"
	}
	return ""
}

// aa says how to make the dedicated A/A of the method of this run.
func (x *index) aa() string {
	return fmt.Sprintf("broker aa --model %s --profile %s, with the workload and points of this run, once for its method: %s", x.in.Plan.Model, x.in.Plan.Profile, x.costing(dedicatedAA))
}

// late reports that nothing but the client's lateness is at fault with the harness.
func (p *pairing) late() bool {
	found := false
	for _, g := range p.grids {
		for _, v := range g.voids {
			if v.cause == matrix.CauseHarness && !v.lag {
				return false
			}
			found = found || v.cause == matrix.CauseHarness
		}
	}
	return found
}

// costing says what a number of loads costs, in hours where the plan knows how long one takes.
func (x *index) costing(n int) string {
	text := fmt.Sprintf("%d loads", n)
	if n == 1 {
		text = "1 load"
	}
	c := x.in.Plan.Cost
	if c.Estimate <= 0 || c.Loads <= 0 {
		return text
	}
	switch d := c.Estimate / time.Duration(c.Loads) * time.Duration(n); {
	case d < time.Minute:
		return fmt.Sprintf("%s, about %.0f s", text, max(1, d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%s, about %.0f min", text, d.Minutes())
	default:
		return fmt.Sprintf("%s, about %.1f h", text, d.Hours())
	}
}

// wide says how many blocks an undecided cell would need at the noise it has shown.
func (x *index) wide(p *pairing, e stats.Estimate, delta float64) string {
	one := 2*len(x.in.Plan.Groups[p.group].Arms) + 1
	target := x.sections[x.primary][p.group].target
	room := math.Max(math.Abs(e.Theta), delta-math.Abs(e.Theta)) - e.Kappa
	if room <= 0 {
		return "the clock allowance is wider than the effect: no number of blocks decides this, pinned clocks may"
	}
	n := e.N
	for n < 1000 {
		t, err := stats.TQuantile(0.975, max(1, n-1))
		if err != nil || t*e.SD/math.Sqrt(float64(n)) < room {
			break
		}
		n += max(1, n/8)
	}
	n += n % 2
	switch {
	case matrix.MaxBlocks >= n && 2*target < matrix.MaxBlocks:
		k := max(1, (n-e.N)/2)
		return fmt.Sprintf("about %d blocks in all would decide it at this noise: %d more superblocks, %s", n, k, x.costing(k*one))
	case n >= 1000:
		return "more than 1000 blocks would be needed at this noise: find its source"
	}
	return fmt.Sprintf("about %d blocks would be needed at this noise, and the protocol looks no further than %d: find its source, or a new series of %s", n, matrix.MaxBlocks, x.costing(n/2*one))
}
