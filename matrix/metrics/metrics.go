// Package metrics turns the arrival log of a repetition into numbers, each under a named and versioned formula.
//
// Stance: the names TTFT, TPOT, ITL and E2EL mean nothing without the formula that computed them: one stream of ten
// tokens gives a TPOT of 17 to 39 ms by six clients in use (harnesses.md §4.3). broker/1 is the formula of verdicts; the
// peers' formulas are computed beside it from the same log, and two formulas never meet in one ratio. A number that
// cannot be derived is absent with a reason, never zero. Failed and suspect requests are in no number, and a void leg has
// none at all.
//
// The way it works:
//
//  1. Accumulator: one request after the other, its stream events once, in bounded memory
//  2. Repetition: one timed pass → a value per metric
//  3. Leg: the median over repetitions, with spread and CV; tails only above their sample floor
package metrics

import "enginebroker/matrix"

// Broker1 is the formula of verdicts.
const Broker1 = "broker/1"

// Names of metrics. Times are ms, rates are per second of the wall window of all attempts.
const (
	OutputTokS      = "output_tok_s"
	TotalTokS       = "total_tok_s"
	ReqS            = "req_s"
	TPOTMean        = "tpot_mean"
	TPOTMedian      = "tpot_median"
	TTFTMean        = "ttft_mean"
	TTFTMedian      = "ttft_median"
	TTFTP90         = "ttft_p90"
	TTFTP95         = "ttft_p95"
	TTFTP99         = "ttft_p99"
	TTFTSchedMedian = "ttft_sched_median"
	E2ELMean        = "e2el_mean"
	E2ELMedian      = "e2el_median"
	E2ELP90         = "e2el_p90"
	E2ELP95         = "e2el_p95"
	E2ELP99         = "e2el_p99"
	E2ELTerminal    = "e2el_terminal_median"
	ITLMean         = "itl_mean"
	ITLMedian       = "itl_median"
	ITLP99          = "itl_p99"
	ChunkGapMedian  = "chunk_gap_median"
	PrefillTokS     = "prefill_tok_s"
	PeakMemDelta    = "peak_mem_delta"
	EnergyPerToken  = "energy_per_output_token"
)

// FlagITLCoalesced is the leg flag under which ITL metrics are withheld (protocol §4.1).
const FlagITLCoalesced = string(matrix.ITLCoalesced)
