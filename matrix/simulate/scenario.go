package simulate

import (
	"math"

	"enginebroker/matrix/stats"
)

// Disturbance is what happens to leg values besides the difference between the arms. Sizes are logarithms: 0.01 is 1 %.
type Disturbance struct {
	Name     string
	Load     float64 // SD of independent noise per load
	Drift    float64 // per load
	Warm     float64 // at the first load, decaying with WarmTau loads
	WarmTau  float64
	AR       float64 // SD of a first-order autoregression over loads
	ARPhi    float64
	Carry    float64 // on a load that follows the first arm
	Step     float64 // from the middle of the series on
	Outlier  float64 // size, on OutlierP of the loads
	OutlierP float64
	State    float64 // size of a second load state, on StateP of the loads
	StateP   float64
	StateOne bool    // only the first arm has it
	Grid     float64 // SD of the effect of a grid on the ratio
}

// Disturbances are the scenarios of protocol §7.1 and §7.7. Sizes come from that section: block and load noise around
// 0.25 %, the drift fitted to six public values (−0.0735 % per load, residual 0.088 %), the rest chosen to be unkind.
var Disturbances = []Disturbance{
	{Name: "iid 0.25 %", Load: 0.0025},
	{Name: "drift as published", Load: 0.00088, Drift: -0.000735},
	{Name: "linear −2 %", Load: 0.0025, Drift: -0.02 / 15},
	{Name: "warm-up −2 %, τ = 3", Load: 0.0025, Warm: -0.02, WarmTau: 3},
	{Name: "AR(1) φ=.7 0.5 %", AR: 0.005, ARPhi: 0.7},
	{Name: "AR(1) φ=.9 1 %", AR: 0.01, ARPhi: 0.9},
	{Name: "carry-over −0.5 % after A", Load: 0.0025, Carry: -0.005},
	{Name: "carry-over + drift", Load: 0.0025, Carry: -0.005, Drift: -0.02 / 15},
	{Name: "step −5 % mid-series", Load: 0.0025, Step: -0.05},
	{Name: "10 % outliers −3 %", Load: 0.0025, Outlier: -0.03, OutlierP: 0.1},
	{Name: "load state p=.5 −10 %, both", Load: 0.0025, State: math.Log(0.9), StateP: 0.5},
	{Name: "load state p=.2 −10 %, one", Load: 0.0025, State: math.Log(0.9), StateP: 0.2, StateOne: true},
	{Name: "grid effect 0.5 %", Load: 0.0025, Grid: 0.005},
	{Name: "grid effect 1 %", Load: 0.0025, Grid: 0.01},
}

// shift is what the disturbance does to the true mean difference of the arms: a state that only the first arm has is part
// of what it is.
func (d Disturbance) shift() float64 {
	if d.StateOne {
		return d.State * d.StateP
	}
	return 0
}

// script draws one series. loads is how many loads a grid has; effect is ln(first/second).
func (d Disturbance) script(rng *stats.SplitMix64, first string, loads int, effect float64) Script {
	ar, grid := 0.0, map[[2]any]float64{}
	return func(l Load) float64 {
		x := d.Load*normal(rng) + d.Drift*float64(l.Seq)
		if d.Warm != 0 {
			x += d.Warm * math.Exp(-float64(l.Seq)/d.WarmTau)
		}
		if d.AR != 0 {
			scale := d.AR
			if l.Seq > 0 {
				scale *= math.Sqrt(1 - d.ARPhi*d.ARPhi)
			} else {
				ar = 0
			}
			ar = d.ARPhi*ar + scale*normal(rng)
			x += ar
		}
		if l.Previous == first {
			x += d.Carry
		}
		if l.Seq >= loads/2 {
			x += d.Step
		}
		if d.OutlierP > 0 && rng.Float64() < d.OutlierP {
			x += d.Outlier
		}
		if d.StateP > 0 && (!d.StateOne || l.Arm == first) && rng.Float64() < d.StateP {
			x += d.State
		}
		if d.Grid != 0 {
			key := [2]any{l.Grid, l.Arm}
			if _, ok := grid[key]; !ok {
				grid[key] = d.Grid / math.Sqrt2 * normal(rng)
			}
			x += grid[key]
		}
		if l.Arm == first {
			x += effect
		}
		return 10 * math.Exp(x)
	}
}

// normal draws a standard normal deviate (Box–Muller, one of the two).
func normal(rng *stats.SplitMix64) float64 {
	u := 1 - rng.Float64()
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*rng.Float64())
}
