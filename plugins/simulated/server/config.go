package server

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"enginebroker/matrix"
)

// Dialects are the engines whose answers the server can give, with the version whose captured answers it follows.
var Dialects = []string{"vllm", "sglang", "llamacpp", "vllmcpp"}

// Fault is a way for a stream to go wrong (reference: public reports of engines' streams).
type Fault string

// Faults of every Config.FailEvery-th streamed request.
const (
	FaultError        Fault = "error_then_done" // an error object in a 200, then [DONE]
	FaultErrorFirst   Fault = "error_first"     // the same before the first token
	FaultErrorJSON    Fault = "error_json"      // a JSON error instead of a stream, status 200
	FaultCut          Fault = "cut"             // the connection breaks in the middle
	FaultHang         Fault = "hang"            // no byte any more, the connection stays
	FaultBusy         Fault = "503"             // refused before the stream
	FaultShort        Fault = "short"           // half of the tokens, finish reason length
	FaultWrongModel   Fault = "wrong_model"     // the answer names another model
	FaultNoUsage      Fault = "no_usage"        // no usage anywhere
	FaultUsage        Fault = "usage_mismatch"  // the last usage counts one token more than the stream
	FaultCached       Fault = "cached"          // cached prompt tokens are reported
	FaultNoFinish     Fault = "no_finish"       // [DONE] without a finish reason
	FaultNoDone       Fault = "no_done"         // finish reason without [DONE]
	FaultEmpty        Fault = "empty"           // a stream without a token
	FaultBuffered     Fault = "buffered"        // all tokens at once at the end
	FaultPromptTokens Fault = "prompt_tokens"   // the prompt counted one token short
	FaultMalformed    Fault = "malformed"       // an event that is no JSON
)

var faults = []Fault{FaultError, FaultErrorFirst, FaultErrorJSON, FaultCut, FaultHang, FaultBusy, FaultShort, FaultWrongModel, FaultNoUsage,
	FaultUsage, FaultCached, FaultNoFinish, FaultNoDone, FaultEmpty, FaultBuffered, FaultPromptTokens, FaultMalformed}

// State is one speed that a load may have for its whole life.
type State struct {
	Factor      float64 // multiplies the speed
	Probability float64
}

// Config is what a simulated engine does. Every field is a setting of Fields and a flag of serve.
type Config struct {
	Dialect     string
	Opens       []string // CONTAINER/QUANTIZATION
	Version     string
	Commit      string
	Dtype       string
	TTFT        time.Duration
	ITL         time.Duration
	Jitter      float64
	LoadNoise   float64
	Seed        uint64
	States      []State
	Drift       float64
	CarryOver   float64
	CarryFile   string
	BatchSlow   float64
	BatchStep   bool
	ChunkTokens int
	PromptCost  time.Duration
	FailEvery   int
	FailKind    Fault
	FailLoads   []string
	ReadyAfter  time.Duration
	ExitLoad    bool
	NeverReady  bool
	HealthLies  bool
	DieAfter    int
	HangAfter   int
	SlowAfter   int
	SlowFactor  float64
	IgnoreTerm  bool
	ForkChild   bool
	WrongAnswer bool
	ServesModel string
}

// Default is the engine with no setting.
func Default() Config {
	return Config{Dialect: "vllm", Version: "1.0", Dtype: "bfloat16", TTFT: 50 * time.Millisecond, ITL: 20 * time.Millisecond,
		Opens: []string{"safetensors/*"}, ChunkTokens: 1, SlowFactor: 1}
}

// Field is one setting and how it is read.
type Field struct {
	matrix.Setting
	set func(*Config, string) error
}

// Fields lists every setting. Bounds keep a typing mistake from becoming an engine that never answers.
func Fields() []Field {
	return []Field{
		{matrix.Setting{Name: "dialect", Type: "string", Default: "vllm", Values: Dialects, Help: "engine whose answers are given"},
			func(c *Config, v string) error { return oneOf(&c.Dialect, v, Dialects) }},
		{matrix.Setting{Name: "opens", Type: "list", Default: "safetensors/*", Help: "CONTAINER/QUANTIZATION that are opened, * for any quantization"},
			func(c *Config, v string) error { return opens(c, v) }},
		{matrix.Setting{Name: "version", Type: "string", Default: "1.0", Help: "version it claims, SIMULATED is put before it"},
			func(c *Config, v string) error { c.Version = v; return nil }},
		{matrix.Setting{Name: "commit", Type: "string", Help: "commit it claims"},
			func(c *Config, v string) error { c.Commit = v; return nil }},
		{matrix.Setting{Name: "compute_dtype", Type: "string", Default: "bfloat16", Help: "compute precision it claims"},
			func(c *Config, v string) error { c.Dtype = v; return nil }},
		duration("ttft", "50ms", "request to first token", func(c *Config) *time.Duration { return &c.TTFT }),
		duration("itl", "20ms", "token to token of one request", func(c *Config) *time.Duration { return &c.ITL }),
		duration("prompt_cost", "0s", "added to the first token for every prompt token", func(c *Config) *time.Duration { return &c.PromptCost }),
		number("jitter", 0, 0.9, "each gap is drawn evenly within this share around its value", func(c *Config) *float64 { return &c.Jitter }),
		number("load_noise", 0, 0.5, "the speed of a load is drawn evenly within this share around 1", func(c *Config) *float64 { return &c.LoadNoise }),
		{matrix.Setting{Name: "seed", Type: "int", Default: "0", Help: "seed of jitter, load state and load noise"},
			func(c *Config, v string) (err error) { c.Seed, err = strconv.ParseUint(v, 10, 64); return plain(err) }},
		{matrix.Setting{Name: "load_states", Type: "list", Help: "FACTOR:PROBABILITY of the speeds a load may have, e.g. 1:0.5,0.9:0.5"},
			func(c *Config, v string) error { return states(c, v) }},
		number("drift", -0.2, 0.2, "the speed changes by this share with every load of the instance", func(c *Config) *float64 { return &c.Drift }),
		number("carry_over", -0.9, 0.9, "the speed changes by this share after a load of another instance; needs carry_file", func(c *Config) *float64 { return &c.CarryOver }),
		{matrix.Setting{Name: "carry_file", Type: "path", Help: "file in which instances tell each other who ran last"},
			func(c *Config, v string) error { c.CarryFile = v; return nil }},
		number("batch_slowdown", 0, 10, "each further running request lengthens a token's time by this share", func(c *Config) *float64 { return &c.BatchSlow }),
		flag("batch_step", "tokens leave at the engine's steps, those of all requests together", func(c *Config) *bool { return &c.BatchStep }),
		count("tokens_per_chunk", 1, "tokens in one event", func(c *Config) *int { return &c.ChunkTokens }),
		count("fail_every", 0, "every so many streamed requests one goes wrong; 0: none", func(c *Config) *int { return &c.FailEvery }),
		{matrix.Setting{Name: "fail_kind", Type: "string", Values: text(faults), Help: "how it goes wrong"},
			func(c *Config, v string) error { return oneOf(&c.FailKind, Fault(v), faults) }},
		{matrix.Setting{Name: "fail_loads", Type: "list", Help: "fail_every holds in loads whose name contains one of these, e.g. -s00-,-s02- (default: in all)"},
			func(c *Config, v string) error {
				c.FailLoads = strings.Split(strings.ReplaceAll(v, " ", ""), ",")
				return nil
			}},
		duration("ready_after", "0s", "time a load takes", func(c *Config) *time.Duration { return &c.ReadyAfter }),
		flag("exit_during_load", "exits with code 1 at the end of the load", func(c *Config) *bool { return &c.ExitLoad }),
		flag("never_ready", "never finishes its load", func(c *Config) *bool { return &c.NeverReady }),
		flag("health_lies", "/health answers 200 whatever is the matter", func(c *Config) *bool { return &c.HealthLies }),
		count("die_after_requests", 0, "exits with code 139 in the middle of the streamed request after so many", func(c *Config) *int { return &c.DieAfter }),
		count("hang_after_requests", 0, "gives no token any more after so many streamed requests", func(c *Config) *int { return &c.HangAfter }),
		count("slow_after_requests", 0, "runs at slow_factor after so many requests of a load", func(c *Config) *int { return &c.SlowAfter }),
		number("slow_factor", 0.01, 1, "speed after slow_after_requests", func(c *Config) *float64 { return &c.SlowFactor }),
		flag("ignore_sigterm", "ends on SIGKILL only", func(c *Config) *bool { return &c.IgnoreTerm }),
		flag("fork_child", "starts a worker that outlives it", func(c *Config) *bool { return &c.ForkChild }),
		flag("wrong_answer", "multiplies wrongly, and answers a repeated question differently", func(c *Config) *bool { return &c.WrongAnswer }),
		{matrix.Setting{Name: "serves_model", Type: "string", Help: "serves this model whatever was asked for"},
			func(c *Config, v string) error { c.ServesModel = v; return nil }},
	}
}

// Problem is one setting that cannot be used.
type Problem struct{ Field, Message string }

// Parse reads settings over the defaults. Every problem is reported, not the first.
func Parse(settings map[string]string) (Config, []Problem) {
	c := Default()
	var bad []Problem
	known := map[string]bool{}
	for _, f := range Fields() {
		known[f.Name] = true
		if v, ok := settings[f.Name]; ok {
			if err := f.set(&c, v); err != nil {
				bad = append(bad, Problem{f.Name, err.Error()})
			}
		}
	}
	for k := range settings {
		if !known[k] {
			bad = append(bad, Problem{k, "there is no such setting"})
		}
	}
	if c.FailEvery > 0 && c.FailKind == "" {
		bad = append(bad, Problem{"fail_kind", "fail_every needs to know how a request goes wrong"})
	}
	if len(c.FailLoads) > 0 && c.FailEvery == 0 {
		bad = append(bad, Problem{"fail_every", "fail_loads needs to know how often a request goes wrong"})
	}
	if c.CarryOver != 0 && c.CarryFile == "" {
		bad = append(bad, Problem{"carry_file", "carry_over needs to know which instance ran last"})
	}
	slices.SortFunc(bad, func(a, b Problem) int { return strings.Compare(a.Field, b.Field) })
	return c, bad
}

func duration(name, def, help string, at func(*Config) *time.Duration) Field {
	return Field{matrix.Setting{Name: name, Type: "duration", Default: def, Help: help}, func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 || d > time.Hour {
			return fmt.Errorf("%q is no duration between 0s and 1h", v)
		}
		*at(c) = d
		return nil
	}}
}

func number(name string, lo, hi float64, help string, at func(*Config) *float64) Field {
	return Field{matrix.Setting{Name: name, Type: "string", Help: help}, func(c *Config, v string) error {
		x, err := strconv.ParseFloat(v, 64)
		if err != nil || !(x >= lo && x <= hi) {
			return fmt.Errorf("%q is no number between %g and %g", v, lo, hi)
		}
		*at(c) = x
		return nil
	}}
}

func count(name string, least int, help string, at func(*Config) *int) Field {
	return Field{matrix.Setting{Name: name, Type: "int", Default: strconv.Itoa(least), Help: help}, func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least {
			return fmt.Errorf("%q is no whole number from %d", v, least)
		}
		*at(c) = n
		return nil
	}}
}

func flag(name, help string, at func(*Config) *bool) Field {
	return Field{matrix.Setting{Name: name, Type: "bool", Default: "false", Help: help}, func(c *Config, v string) (err error) {
		*at(c), err = strconv.ParseBool(v)
		return plain(err)
	}}
}

func oneOf[T ~string](at *T, v T, all []T) error {
	if !slices.Contains(all, v) {
		return fmt.Errorf("%q is none of %s", string(v), strings.Join(text(all), ", "))
	}
	*at = v
	return nil
}

func text[T ~string](all []T) []string {
	out := make([]string, len(all))
	for i, x := range all {
		out[i] = string(x)
	}
	return out
}

// plain drops the name of the strconv function from an error.
func plain(err error) error {
	var n *strconv.NumError
	if errors.As(err, &n) {
		return fmt.Errorf("%q: %w", n.Num, n.Err)
	}
	return err
}

func opens(c *Config, v string) error {
	c.Opens = nil
	for _, s := range strings.Split(v, ",") {
		s = strings.TrimSpace(s)
		container, quant, ok := strings.Cut(s, "/")
		if !ok || container == "" || quant == "" {
			return fmt.Errorf("%q is not CONTAINER/QUANTIZATION", s)
		}
		c.Opens = append(c.Opens, s)
	}
	return nil
}

func states(c *Config, v string) error {
	c.States = nil
	sum := 0.0
	for _, s := range strings.Split(v, ",") {
		f, p, _ := strings.Cut(strings.TrimSpace(s), ":")
		factor, err1 := strconv.ParseFloat(f, 64)
		prob, err2 := strconv.ParseFloat(p, 64)
		if err1 != nil || err2 != nil || !(factor > 0.01 && factor < 100) || !(prob >= 0 && prob <= 1) {
			return fmt.Errorf("%q is not FACTOR:PROBABILITY", s)
		}
		c.States = append(c.States, State{factor, prob})
		sum += prob
	}
	if sum < 0.999 || sum > 1.001 {
		return fmt.Errorf("the probabilities add to %g, not to 1", sum)
	}
	return nil
}
