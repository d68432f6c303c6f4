package matrix

import (
	"fmt"
	"maps"
	"slices"
)

// Verdict is what may be said about a cell. It is a function of the set of reasons and of nothing else (protocol §4.5).
type Verdict int

// Verdicts by rank, least severe first.
const (
	Established Verdict = iota
	Provisional
	Inconclusive
	NotReproduced
	Withheld
	Void
	NotComparable
)

var verdictNames = []string{"ESTABLISHED", "PROVISIONAL", "INCONCLUSIVE", "NOT_REPRODUCED", "WITHHELD", "VOID", "NOT_COMPARABLE"}

func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictNames) {
		return fmt.Sprintf("Verdict(%d)", int(v))
	}
	return verdictNames[v]
}

// MarshalText writes the verdict's name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads a verdict's name.
func (v *Verdict) UnmarshalText(b []byte) error {
	i := slices.Index(verdictNames, string(b))
	if i < 0 {
		return fmt.Errorf("unknown verdict %q", b)
	}
	*v = Verdict(i)
	return nil
}

// Reason is a code that limits what may be said about a cell.
type Reason string

// Reasons, in the groups of the verdict each of them leads to (protocol §4.5).
const (
	NoCommonQuant        Reason = "NO_COMMON_QUANT"
	ConvertedCheckpoint  Reason = "CONVERTED_CHECKPOINT"
	CheckpointMismatch   Reason = "CHECKPOINT_MISMATCH"
	DraftedVsRaw         Reason = "DRAFTED_VS_RAW"
	PrefixCacheMismatch  Reason = "PREFIX_CACHE_MISMATCH"
	KVDtypeMismatch      Reason = "KV_DTYPE_MISMATCH"
	MethodMismatch       Reason = "METHOD_MISMATCH"
	WorkloadMismatch     Reason = "WORKLOAD_MISMATCH"
	PromptTokensMismatch Reason = "PROMPT_TOKENS_MISMATCH"
	MachineMismatch      Reason = "MACHINE_MISMATCH"
	IdentityAssertFailed Reason = "IDENTITY_ASSERT_FAILED"
	ComputeDtypeMismatch Reason = "COMPUTE_DTYPE_MISMATCH"
	LimitsMismatch       Reason = "LIMITS_MISMATCH"
	DrafterMismatch      Reason = "DRAFTER_MISMATCH"
	MultiNodeUnsupported Reason = "MULTI_NODE_UNSUPPORTED"

	NoValidBlock      Reason = "NO_VALID_BLOCK"
	TooManyEnvVoids   Reason = "TOO_MANY_ENV_VOIDS"
	ClockSeries       Reason = "CLOCK_SERIES"
	ClockBootMismatch Reason = "CLOCK_BOOT_MISMATCH"
	CotenantSeries    Reason = "COTENANT_SERIES"
	HarnessFault      Reason = "HARNESS_FAULT"

	EngineVoidOnRecord Reason = "ENGINE_VOID_ON_RECORD"
	InsufficientBlocks Reason = "INSUFFICIENT_BLOCKS"
	AAMissing          Reason = "AA_MISSING"
	AAFailed           Reason = "AA_FAILED"
	RatioInconsistent  Reason = "RATIO_INCONSISTENT"
	CanaryFailed       Reason = "CANARY_FAILED"
	OperatorHold       Reason = "OPERATOR_HOLD"
	AttachedServer     Reason = "ATTACHED"

	GridShiftRatio Reason = "GRID_SHIFT_RATIO"
	GridShiftArm   Reason = "GRID_SHIFT_ARM"

	WideCI           Reason = "WIDE_CI"
	ReversedBlocks   Reason = "REVERSED_BLOCKS"
	LoadStateMulti   Reason = "LOAD_STATE_MULTI"
	TailUndersampled Reason = "TAIL_UNDERSAMPLED"
	ITLCoalesced     Reason = "ITL_COALESCED"

	FewBlocks           Reason = "FEW_BLOCKS"
	SingleGrid          Reason = "SINGLE_GRID"
	GridUndecided       Reason = "GRID_UNDECIDED"
	GridShiftCommon     Reason = "GRID_SHIFT_COMMON"
	GridInterval        Reason = "GRID_INTERVAL"
	ReferenceNotPin     Reason = "REFERENCE_NOT_PIN"
	BuildUnrecorded     Reason = "BUILD_UNRECORDED"
	SingleResidency     Reason = "SINGLE_RESIDENCY"
	ClockHeadUnobserved Reason = "CLOCK_HEAD_UNOBSERVED"
	LoadStateSuspect    Reason = "LOAD_STATE_SUSPECT"
	LoadStateUntested   Reason = "LOAD_STATE_UNTESTED"
	ThermalStartOffset  Reason = "THERMAL_START_OFFSET"
	AAEmbeddedOnly      Reason = "AA_EMBEDDED_ONLY"
	BoxUncertified      Reason = "BOX_UNCERTIFIED"
	Simulated           Reason = "SIMULATED"
	NotPreflighted      Reason = "NOT_PREFLIGHTED"
	FactUnobserved      Reason = "FACT_UNOBSERVED"
)

var reasonVerdicts = func() map[Reason]Verdict {
	m := map[Reason]Verdict{}
	for v, rs := range map[Verdict][]Reason{
		NotComparable: {NoCommonQuant, ConvertedCheckpoint, CheckpointMismatch, DraftedVsRaw, PrefixCacheMismatch, KVDtypeMismatch,
			MethodMismatch, WorkloadMismatch, PromptTokensMismatch, MachineMismatch, IdentityAssertFailed, ComputeDtypeMismatch,
			LimitsMismatch, DrafterMismatch, MultiNodeUnsupported},
		Void:          {NoValidBlock, TooManyEnvVoids, ClockSeries, ClockBootMismatch, CotenantSeries, HarnessFault},
		Withheld:      {EngineVoidOnRecord, InsufficientBlocks, AAMissing, AAFailed, RatioInconsistent, CanaryFailed, OperatorHold, AttachedServer},
		NotReproduced: {GridShiftRatio, GridShiftArm},
		Inconclusive:  {WideCI, ReversedBlocks, LoadStateMulti, TailUndersampled, ITLCoalesced},
		Provisional: {FewBlocks, SingleGrid, GridUndecided, GridShiftCommon, GridInterval, ReferenceNotPin, BuildUnrecorded,
			SingleResidency, ClockHeadUnobserved, LoadStateSuspect, LoadStateUntested, ThermalStartOffset, AAEmbeddedOnly,
			BoxUncertified, Simulated, NotPreflighted, FactUnobserved},
	} {
		for _, r := range rs {
			m[r] = v
		}
	}
	return m
}()

// Verdict returns the verdict this reason leads to. An unknown reason is a program error, never rank 0.
func (r Reason) Verdict() (Verdict, error) {
	v, ok := reasonVerdicts[r]
	if !ok {
		return NotComparable, fmt.Errorf("unknown reason %q", r)
	}
	return v, nil
}

// Reasons lists every reason of a verdict, sorted.
func (v Verdict) Reasons() []Reason {
	var out []Reason
	for r, rv := range reasonVerdicts {
		if rv == v {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return out
}

// Cause says who is answerable for a void leg.
type Cause string

const (
	CauseEngine  Cause = "ENGINE"
	CauseEnv     Cause = "ENV"
	CauseHarness Cause = "HARNESS"
)

// LegCode is a gate a leg failed (protocol §4.1, §4.2).
type LegCode string

const (
	FailedRequests     LegCode = "FAILED_REQUESTS"
	RequestCount       LegCode = "REQUEST_COUNT"
	TokenCountCode     LegCode = "TOKEN_COUNT"
	TokenSum           LegCode = "TOKEN_SUM"
	UsageMismatch      LegCode = "USAGE_MISMATCH"
	UsageMissing       LegCode = "USAGE_MISSING"
	PrefixCacheHit     LegCode = "PREFIX_CACHE_HIT"
	IncompleteStream   LegCode = "INCOMPLETE_STREAM"
	BufferedStream     LegCode = "BUFFERED_STREAM"
	StreamSpread       LegCode = "STREAM_SPREAD"
	PromptTokensCode   LegCode = "PROMPT_TOKENS_MISMATCH"
	CanaryFailedCode   LegCode = "CANARY_FAILED"
	LoadStep           LegCode = "LOAD_STEP"
	ServerDied         LegCode = "SERVER_DIED"
	EngineHung         LegCode = "ENGINE_HUNG"
	GPULost            LegCode = "GPU_LOST"
	KilledByHost       LegCode = "KILLED_BY_HOST"
	HostVanished       LegCode = "HOST_VANISHED"
	ClockFewBusy       LegCode = "CLOCK_FEW_BUSY_SAMPLES"
	ClockBusyFraction  LegCode = "CLOCK_BUSY_FRACTION"
	ClockSpread        LegCode = "CLOCK_SPREAD"
	ClockThrottled     LegCode = "CLOCK_THROTTLED"
	ClockPersistence   LegCode = "CLOCK_PERSISTENCE"
	ClockDegraded      LegCode = "CLOCK_DEGRADED_STATE"
	ClockMedianOffset  LegCode = "CLOCK_MEDIAN_OFFSET"
	ClockMeanOffset    LegCode = "CLOCK_MEAN_OFFSET"
	ClockMeanMissing   LegCode = "CLOCK_MEAN_MISSING"
	ClockBootMismatchC LegCode = "CLOCK_BOOT_MISMATCH"
	ThermalCounter     LegCode = "THERMAL_COUNTER"
	Cotenant           LegCode = "COTENANT"
	MemoryNotReturned  LegCode = "MEMORY_NOT_RETURNED"
	PageCacheResident  LegCode = "PAGE_CACHE_RESIDENT"
	LoadAverageCode    LegCode = "LOAD_AVERAGE"
	ForeignCPU         LegCode = "FOREIGN_CPU"
	SwapActivity       LegCode = "SWAP_ACTIVITY"
	SuperblockDrift    LegCode = "SUPERBLOCK_DRIFT"
	ClientLag          LegCode = "CLIENT_LAG"
	EvidenceMissing    LegCode = "EVIDENCE_MISSING"
	MethodChanged      LegCode = "METHOD_CHANGED"
	IdentityChanged    LegCode = "IDENTITY_CHANGED"
)

var codeCauses = func() map[LegCode]Cause {
	m := map[LegCode]Cause{}
	for c, codes := range map[Cause][]LegCode{
		CauseEngine: {FailedRequests, RequestCount, TokenCountCode, TokenSum, UsageMismatch, UsageMissing, PrefixCacheHit, IncompleteStream,
			BufferedStream, StreamSpread, PromptTokensCode, CanaryFailedCode, LoadStep, ServerDied, EngineHung},
		CauseEnv: {GPULost, KilledByHost, HostVanished, ClockFewBusy, ClockBusyFraction, ClockSpread, ClockThrottled, ClockPersistence,
			ClockDegraded, ClockMedianOffset, ClockMeanOffset, ClockBootMismatchC, ThermalCounter, Cotenant, MemoryNotReturned,
			PageCacheResident, LoadAverageCode, ForeignCPU, SwapActivity, SuperblockDrift},
		CauseHarness: {ClockMeanMissing, ClientLag, EvidenceMissing, MethodChanged, IdentityChanged},
	} {
		for _, code := range codes {
			m[code] = c
		}
	}
	return m
}()

// LegCodes lists every leg code, sorted.
func LegCodes() []LegCode { return slices.Sorted(maps.Keys(codeCauses)) }

// Cause returns who is answerable for one code; several codes are resolved by the gates.
func (c LegCode) Cause() (Cause, error) {
	x, ok := codeCauses[c]
	if !ok {
		return "", fmt.Errorf("unknown leg code %q", c)
	}
	return x, nil
}
