package simulate

import (
	"math"

	"enginebroker/matrix"
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
	Says     Says
}

// Says is what the protocol document found for a disturbance, percent of series (§7.1, §7.7; 20 000 series a figure). Naive
// is in the order of Naive. Absent: it gives no figure.
type Says struct {
	Misses matrix.Opt[float64] // the superblock schedule's interval excludes the truth
	Two    matrix.Opt[float64] // two grids, widened: a better arm is named
	Naive  [3]float64
}

func says(misses float64, naive ...float64) Says {
	return Says{Misses: matrix.Some(misses), Naive: [3]float64(naive)}
}

// Disturbances are the scenarios of protocol §7.1 and §7.7, with what it says of them. Sizes come from that section: block and load noise around
// 0.25 %, the drift fitted to six public values (−0.0735 % per load, residual 0.088 %), the rest chosen to be unkind.
var Disturbances = []Disturbance{
	{Name: "iid 0.25 %", Load: 0.0025, Says: says(5.0, 4.4, 4.6, 5.2)},
	{Name: "drift as published", Load: 0.00088, Drift: -0.000735, Says: says(3.3, 100, 4.9, 20.8)},
	{Name: "linear −2 %", Load: 0.0025, Drift: -0.02 / 15, Says: says(3.5, 99.9, 4.9, 17.4)},
	{Name: "warm-up −2 %, τ = 3", Load: 0.0025, Warm: -0.02, WarmTau: 3, Says: says(3.2, 84.7, 3.4, 12.5)},
	{Name: "AR(1) φ=.7 0.5 %", AR: 0.005, ARPhi: 0.7, Says: says(6.2, 30.1, 4.5, 2.9)},
	{Name: "AR(1) φ=.9 1 %", AR: 0.01, ARPhi: 0.9, Says: says(5.5, 38.9, 4.4, 3.9)},
	{Name: "carry-over −0.5 % after A", Load: 0.0025, Carry: -0.005, Says: says(5.0, 31.1, 4.9, 78.4)},
	{Name: "carry-over + drift", Load: 0.0025, Carry: -0.005, Drift: -0.02 / 15, Says: says(3.5, 78.7, 5.2, 95.8)},
	{Name: "step −5 % mid-series", Load: 0.0025, Step: -0.05, Says: says(5.0, 100, 7.9, 5.2)},
	{Name: "10 % outliers −3 %", Load: 0.0025, Outlier: -0.03, OutlierP: 0.1, Says: says(2.0, 1.7, 1.5, 1.9)},
	{Name: "load state p=.5 −10 %, both", Load: 0.0025, State: math.Log(0.9), StateP: 0.5, Says: says(3.7, 3.9, 3.8, 3.5)},
	{Name: "load state p=.2 −10 %, one", Load: 0.0025, State: math.Log(0.9), StateP: 0.2, StateOne: true, Says: says(27.0, 26.7, 25.9, 25.9)},
	{Name: "grid effect 0.5 %", Load: 0.0025, Grid: 0.005, Says: Says{Misses: matrix.Some(51.0), Two: matrix.Some(3.0)}},
	{Name: "grid effect 1 %", Load: 0.0025, Grid: 0.01, Says: Says{Misses: matrix.Some(73.0), Two: matrix.Some(8.7)}},
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
