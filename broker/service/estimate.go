package service

import (
	"fmt"
	"slices"
	"time"

	"enginebroker/matrix"
	"enginebroker/matrix/metrics"
)

// Bases of an estimate where no earlier run is on record [own unless said]. They are for planning a day, never for judging.
const (
	coldBase    = 45 * time.Second // start of an engine before it reads weights: imports, graphs (engines.md C8, D8: 33–60 s)
	readRate    = 300e6            // bytes per second of a cold load; a GB10 loads 55 GB in 3–5 minutes without mmap (gb10-nvml.md §2)
	bandwidth   = 225e9            // bytes per second that decoding one stream can read; measured on GB10 of 273 (harnesses.md §5.1)
	prefillRate = 1000.0           // prompt tokens per second
	settleTime  = 60 * time.Second // protocol §2.6
)

// pace is what an earlier run showed of an arm on this box.
type pace struct {
	Load   time.Duration `json:"load_ns"` // start, settle, canary, stop
	Decode float64       `json:"decode_tok_s"`
	Runs   int           `json:"runs"`
}

// estimate fills in how long the plan takes and from where that is known.
func (s *Service) estimate(p *matrix.Plan, model matrix.Model) {
	var total time.Duration
	known, guessed := 0, 0
	for _, g := range p.Groups {
		a, _ := model.Artifact(g.Artifact)
		for _, arm := range g.Arms {
			load, decode, ok := s.pace(arm, a, p.Box)
			if ok {
				known++
			} else {
				guessed++
			}
			scored := 2 * len(g.Superblocks)
			total += time.Duration(scored) * (load + legs(p.Method, p.Method.Repetitions, decode))
			total += time.Duration(len(g.Superblocks)) * (load + legs(p.Method, 1, decode)) / time.Duration(len(g.Arms))
		}
	}
	p.Cost.Estimate = total.Round(time.Second)
	switch {
	case guessed == 0 && known > 0:
		p.Cost.Basis = "earlier runs of these arms on this box"
	case known == 0:
		p.Cost.Basis = "no earlier run on record: file sizes at 300 MB/s, decoding at 225 GB/s of memory bandwidth, one stream's rate at every concurrency"
	default:
		p.Cost.Basis = fmt.Sprintf("earlier runs for %d arms, file sizes and memory bandwidth for %d", known, guessed)
	}
}

func (s *Service) pace(arm matrix.Arm, a matrix.Artifact, box string) (time.Duration, float64, bool) {
	var p pace
	if key, err := matrix.Digest([]string{arm.Engine, arm.Instance, arm.Artifact, box}); err == nil {
		if ok, err := s.load("pace", key, &p); err == nil && ok && p.Decode > 0 {
			return p.Load, p.Decode, true
		}
	}
	if arm.Simulated {
		return time.Second, 500, false
	}
	size := float64(a.Bytes.Or(0))
	for _, f := range a.Files {
		size += float64(f.Bytes.Or(0))
	}
	if m, ok := a.Manifest.Get(); ok {
		size = 0
		for _, n := range m.DtypeBytes {
			size += float64(n)
		}
	}
	if size == 0 {
		return coldBase + settleTime, 20, false
	}
	load := coldBase + time.Duration(size/readRate*float64(time.Second))
	if box == "gb10" || box == "nvidia" {
		load += settleTime
	}
	return load, min(bandwidth/size, 200), false
}

// legs is the time of all points of one load: warm-up and repetitions in waves of the concurrency, or as long as requests
// arrive.
func legs(m matrix.Method, reps int, decode float64) time.Duration {
	total := 0.0
	for _, p := range m.Points {
		one := float64(p.PromptTokens)/prefillRate + float64(p.OutputTokens)/decode
		if n := float64(p.Warmup + reps*p.Requests); p.Rate.IsZero() {
			total += one * n / float64(p.Concurrency)
		} else {
			total += 60*n/float64(p.Rate.PerMinute) + one*float64(1+reps)
		}
	}
	return time.Duration(total * float64(time.Second))
}

// keepPace keeps what a run showed of each arm, for the estimates of later plans. It is for planning a day, so that what
// cannot be kept is no failure of the run.
func (s *Service) keepPace(r matrix.Report) {
	for _, g := range r.Plan.Groups {
		for _, arm := range g.Arms {
			var p pace
			var tpot []float64
			for _, l := range r.Legs {
				if x, ok := l.Values[metrics.TPOTMedian].X.Get(); ok && l.ID.Group == g.ID && l.ID.Arm == arm.Label && x > 0 {
					tpot = append(tpot, x)
				}
			}
			var loads []float64
			for _, l := range r.Loads {
				if ready, ok := l.Ready.Get(); ok && l.ArmKey == arm.Key {
					loads = append(loads, float64(ready.FirstToken)+float64(l.Env.SettleTook))
				}
			}
			if len(tpot) == 0 || len(loads) == 0 {
				continue
			}
			p.Load, p.Decode, p.Runs = time.Duration(slices.Max(loads)), 1000/slices.Min(tpot), len(loads)
			key, err := matrix.Digest([]string{arm.Engine, arm.Instance, arm.Artifact, r.Plan.Box})
			if err == nil {
				err = s.save("pace", key, p)
			}
			if err != nil {
				s.log.Warn("pace of " + arm.Label + " not kept: " + err.Error())
			}
		}
	}
}
