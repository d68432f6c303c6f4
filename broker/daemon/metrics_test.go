package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap/zaptest"

	"enginebroker/broker/service"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// scrape is what a scraper reads: a line for every series.
func scrape(m *metrics) string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return "\n" + w.Body.String()
}

func TestMetricsOfEverythingAnOperatorAsksFor(t *testing.T) {
	m := newMetrics()
	q := newQueue(newFake(t), zaptest.NewLogger(t), m)
	q.waiting = []*job{{}, {}}
	q.quiet.Open()
	m.ended(brokerv1.RunState_RUN_STATE_COMPLETE)
	for _, e := range []service.Event{
		{Kind: "leg"}, {Kind: "leg"}, {Kind: "leg", Codes: []string{"CLIENT_LAG", "COTENANT"}}, {Kind: "load"},
		{Kind: service.Relaunch, Arm: "ours"}, {Kind: service.Relaunch, Arm: "ours"}, {Kind: service.Relaunch, Arm: "vllm"},
	} {
		m.step(e)
	}
	got := scrape(m)
	for _, line := range []string{
		`broker_runs_total{state="complete"} 1`,
		`broker_legs_total{outcome="valid"} 2`,
		`broker_legs_total{outcome="void"} 1`,
		`broker_leg_voids_total{reason="CLIENT_LAG"} 1`,
		`broker_leg_voids_total{reason="COTENANT"} 1`,
		`broker_queue_waiting 2`,
		`broker_measuring 1`,
		`broker_plugin_restarts_total{engine="ours"} 2`,
		`broker_plugin_restarts_total{engine="vllm"} 1`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	for _, name := range []string{"process_cpu_seconds_total", "process_resident_memory_bytes"} {
		if !strings.Contains(got, fmt.Sprintf("\n%s ", name)) {
			t.Errorf("no %s", name)
		}
	}
}
