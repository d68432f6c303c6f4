package openai

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"enginebroker/matrix"
)

// Metrics are the families of one scrape.
type Metrics map[string]*dto.MetricFamily

// Metrics reads a Prometheus endpoint.
func (c *Client) Metrics(ctx context.Context, path string) (Metrics, error) {
	b, err := c.Raw(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return ParseMetrics(b)
}

// ParseMetrics reads the text exposition format.
func ParseMetrics(b []byte) (Metrics, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	m, err := p.TextToMetricFamilies(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}

// Has reports whether a family is there at all, which for some engines says that a feature is on.
func (m Metrics) Has(name string) bool { return m[name] != nil }

// Sum adds the values of a family whose series carry all the given label values (name, value, …); absent when there is
// no such series.
func (m Metrics) Sum(name string, labels ...string) matrix.Opt[float64] {
	var sum matrix.Opt[float64]
	f := m[name]
	if f == nil {
		return sum
	}
	for _, s := range f.Metric {
		if !carries(s, labels) {
			continue
		}
		var v float64
		switch {
		case s.Counter != nil:
			v = s.Counter.GetValue()
		case s.Gauge != nil:
			v = s.Gauge.GetValue()
		case s.Untyped != nil:
			v = s.Untyped.GetValue()
		default:
			continue // histograms and summaries have no one value
		}
		sum = matrix.Some(sum.Or(0) + v)
	}
	return sum
}

// Count is Sum as a whole number.
func (m Metrics) Count(name string, labels ...string) matrix.Opt[int64] {
	if v, ok := m.Sum(name, labels...).Get(); ok {
		return matrix.Some(int64(v))
	}
	return matrix.Opt[int64]{}
}

func carries(s *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, l := range s.Label {
			found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}
