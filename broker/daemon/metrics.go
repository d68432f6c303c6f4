package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// metrics are for operators; nothing in them is a measurement of an engine.
type metrics struct {
	reg    *prometheus.Registry
	runs   *prometheus.CounterVec
	legs   *prometheus.CounterVec
	voids  *prometheus.CounterVec
	plugin *prometheus.CounterVec
	calls  *prometheus.CounterVec
	opened prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{reg: prometheus.NewRegistry(),
		runs:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "broker_runs_total", Help: "Turns of runs by the state they ended in."}, []string{"state"}),
		legs:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "broker_legs_total", Help: "Timed legs by outcome."}, []string{"outcome"}),
		voids:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "broker_leg_voids_total", Help: "Gate codes of void legs; a leg may have several."}, []string{"reason"}),
		plugin: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "broker_plugin_restarts_total", Help: "Plugins that died and were launched again, by the engine's label."}, []string{"engine"}),
		calls:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "broker_calls_total", Help: "Calls by method and status code."}, []string{"method", "code"}),
		opened: prometheus.NewGauge(prometheus.GaugeOpts{Name: "broker_watchers", Help: "Open streams."}),
	}
	m.reg.MustRegister(m.runs, m.legs, m.voids, m.plugin, m.calls, m.opened, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return m
}

// watch adds what is read from the queue when somebody asks.
func (m *metrics) watch(q *queue) {
	m.reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "broker_queue_waiting", Help: "Runs that wait for the box."}, func() float64 {
			q.mu.Lock()
			defer q.mu.Unlock()
			return float64(len(q.waiting))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "broker_measuring", Help: "1 while a timed window is open."}, func() float64 {
			if q.quiet.measuring() {
				return 1
			}
			return 0
		}))
}

func (m *metrics) ended(s brokerv1.RunState) {
	m.runs.WithLabelValues(strings.ToLower(strings.TrimPrefix(s.String(), "RUN_STATE_"))).Inc()
}

func (m *metrics) step(e service.Event) {
	switch e.Kind {
	case service.Relaunch:
		m.plugin.WithLabelValues(e.Arm).Inc()
		return
	case "leg":
	default:
		return
	}
	if len(e.Codes) == 0 {
		m.legs.WithLabelValues("valid").Inc()
		return
	}
	m.legs.WithLabelValues("void").Inc()
	for _, c := range e.Codes {
		m.voids.WithLabelValues(c).Inc()
	}
}

// serve answers scrapes on a listener of its own, so that a scraper needs no rights on the API.
func (m *metrics) serve(addr string, log *zap.Logger) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, failf(service.CauseUsage, "give --metrics a free address", "metrics: %w", err)
	}
	srv := &http.Server{Handler: promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{MaxRequestsInFlight: 2}), ReadHeaderTimeout: handshakeLimit, WriteTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics", zap.Error(err))
		}
	}()
	log.Info("metrics", zap.Stringer("address", l.Addr()))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
		defer cancel()
		_ = srv.Shutdown(ctx)
		srv.Close()
		<-done
	}, nil
}
