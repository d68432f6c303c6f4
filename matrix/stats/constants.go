package stats

// Constants are the thresholds of the arithmetic under the names of a vector file (protocol §9).
func Constants() map[string]any {
	return map[string]any{"qcrit": gapQuantile, "qcrit_from_10": gapQuantile10, "cgrid": gridFactor, "cgrid_from_8": gridFactor8,
		"delta_m": ReloadMargin, "delta_r": GridMargin, "mode_floor_log": modeFloor, "grid_floor": gridFloor}
}
