// Package server is an engine that is none: it answers over real HTTP as one of four engines would, at configured times,
// with configured faults, and says in everything it sends that it is simulated.
//
// It exists so that the whole way from plan to verdict can be walked, and its client measured, against a known truth. Its
// stance: the truth is in the Config alone. Equal Config, seed, load and requests give equal tokens, times and faults;
// token times are absolute, so that lateness never adds up.
//
// The way of one request: read and checked as the dialect does (request.go), given a slot, paced token by token
// (generate.go) on an alarm (alarm.go), written in the dialect's shape (dialect.go, native.go).
package server

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Params are one server lifetime of a simulated engine.
type Params struct {
	Config
	Model   string  // served name
	Path    string  // of the artifact, as the server repeats it
	LoadID  string  // draws what differs from load to load
	Speed   float64 // of this load
	Context int     // usable tokens of one request
	Slots   int     // requests at once

	Quantization, KVDtype, Speculation string // as it says when asked
}

// fails reports whether the streams of this load go wrong.
func (p Params) fails() bool {
	return len(p.FailLoads) == 0 || slices.ContainsFunc(p.FailLoads, func(part string) bool { return strings.Contains(p.LoadID, part) })
}

// Server answers as an engine. Create it with New.
type Server struct {
	p     Params
	shape shape
	mux   *http.ServeMux
	slots chan struct{}
	alarm alarm
	born  time.Duration

	ready    atomic.Bool
	dead     atomic.Bool
	requests atomic.Int64 // generation requests so far
	streamed atomic.Int64
	running  atomic.Int64

	generated, promptTotal, cachedTotal atomic.Int64
}

// New returns a server that is ready at once; Run adds the load.
func New(p Params) *Server {
	p.Speed = orOne(p.Speed)
	if p.Context <= 0 {
		p.Context = 1 << 20
	}
	if p.Slots <= 0 {
		p.Slots = 1 << 10
	}
	s := &Server{p: p, shape: shapes[p.Dialect], mux: http.NewServeMux(), slots: make(chan struct{}, p.Slots), born: now()}
	s.ready.Store(true)
	s.routes()
	return s
}

func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// Version is the version as every dialect reports it.
func (s *Server) Version() string { return s.p.Config.StampedVersion() }

// StampedVersion is the version with the stamp.
func (c Config) StampedVersion() string { return "SIMULATED-" + c.Version }

func (s *Server) model() string {
	if s.p.ServesModel != "" {
		return s.p.ServesModel
	}
	return s.p.Model
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.shape.server != "" {
		w.Header().Set("Server", s.shape.server)
	}
	s.mux.ServeHTTP(w, r)
}

// LoadSpeed is the speed of one load of an instance: its state, drift, noise and what the load before left. index counts
// the instance's loads; foreign says that another instance ran last.
func (c Config) LoadSpeed(loadID string, index int, foreign bool) float64 {
	h := fnv.New64a()
	h.Write([]byte(loadID))
	rng := rand.New(rand.NewPCG(c.Seed, h.Sum64()))
	speed := 1.0
	x := rng.Float64()
	for i, st := range c.States {
		if x < st.Probability || i == len(c.States)-1 {
			speed = st.Factor
			break
		}
		x -= st.Probability
	}
	if c.LoadNoise > 0 {
		speed *= 1 + c.LoadNoise*(2*rng.Float64()-1)
	}
	speed *= 1 + c.Drift*float64(index)
	if foreign {
		speed *= 1 + c.CarryOver
	}
	return max(speed, 0.01)
}

// ErrLoad is what Run returns where Config.ExitLoad is set.
var ErrLoad = errors.New("simulated: fatal: the configuration says that this load fails")

// Run listens, loads and answers until ctx ends. The log is the engine's.
func (s *Server) Run(ctx context.Context, addr string, out io.Writer) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("simulated: fatal: %w", err)
	}
	say := log.New(out, "", log.LstdFlags)
	say.Printf("SIMULATED engine, dialect %s, version %s, listening on %s, speed of this load %.6f", s.p.Dialect, s.Version(), l.Addr(), s.p.Speed)
	s.ready.Store(false)
	hs := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ErrorLog: say, ConnContext: withConn}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(listener{l}) }()
	defer hs.Close()
	load := time.NewTimer(s.p.ReadyAfter)
	defer load.Stop()
	for {
		select {
		case <-load.C:
			if s.p.ExitLoad {
				return ErrLoad
			}
			if !s.p.NeverReady {
				s.ready.Store(true)
				say.Print("loaded")
			}
		case err := <-served:
			return err
		case <-ctx.Done():
			say.Print("stopping")
			return nil
		}
	}
}
