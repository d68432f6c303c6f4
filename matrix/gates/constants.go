package gates

import "fmt"

// ClockConstants are the clock limits of a box profile under the names of a vector file (protocol §9).
func ClockConstants(p Profile) map[string]any {
	return map[string]any{"spread_max_pct": clockMaxSpread, "median_offset_max_pct": clockMaxOffset, "mean_offset_max_pct": clockMaxOffset,
		"busy_min": clockMinBusy, "busy_fraction_min": clockMinFraction, "benign_mask": fmt.Sprintf("%#x", p.ClockMask), "epsilon": clockEps}
}
