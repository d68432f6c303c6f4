package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"enginebroker/engines"
	"enginebroker/matrix"
)

// describeLimit is far above the milliseconds that files on disk take, and far below the start of any engine.
const describeLimit = 5 * time.Second

var settingTypes = []string{"string", "path", "int", "duration", "bool", "list", "map"}

func describes(b *bench) {
	ctx, cancel := context.WithTimeout(b.ctx, describeLimit)
	defer cancel()
	d, err := b.engine.Describe(ctx)
	if err != nil {
		b.fail("Describe before Configure: %v; not installed is an answer", err)
		return
	}
	if d.Engine == "" {
		b.fail("Describe does not name the engine")
	}
	if !d.Installed && len(d.LookedFor) == 0 {
		b.fail("not installed, and nothing says what was looked for")
	}
	b.facts("Description.Identity", d.Identity)
	b.secrets("Description", d)
	names := map[string]bool{}
	for _, s := range d.Settings {
		if names[s.Name] || s.Name == "" {
			b.fail("setting %q is there twice or has no name", s.Name)
		}
		names[s.Name] = true
		if !slices.Contains(settingTypes, s.Type) || s.Help == "" {
			b.fail("setting %s: type %q is not one of %v, or there is no help", s.Name, s.Type, settingTypes)
		}
	}
	for _, c := range d.Capabilities {
		what := c.Container + "/" + c.Quantization
		if c.Container == "" || c.Quantization == "" || c.Status == "" {
			b.fail("capability %s: container, quantization and status are required", what)
		}
		if c.Status == matrix.StatusOK {
			b.fail("capability %s is ok: only a preflight of one artifact makes that so (protocol §2.1)", what)
		}
		if !c.Status.Runs() && c.Why == "" {
			b.fail("capability %s is %s and does not say why", what, c.Status)
		}
	}
	for _, s := range d.Refuses {
		if s.Why == "" {
			b.fail("a refused launch form says no reason: %+v", s)
		}
	}
	if again, err := b.engine.Describe(ctx); err != nil || !reflect.DeepEqual(again, d) {
		b.fail("a second Describe answers differently (%v)", err)
	}
}

func refusesBeforeConfigure(b *bench) {
	if _, err := b.engine.Start(b.ctx, b.request(), nil); !errors.Is(err, engines.ErrNotConfigured) {
		b.fail("Start before Configure: %v, want ErrNotConfigured", err)
	}
	b.notStarted("before Configure")
	if _, err := b.engine.Tokenize(b.ctx, "a"); err != nil && !notThere(err) {
		b.fail("Tokenize before Configure: %v", err)
	}
}

// notThere reports an answer that says that there is nothing to answer.
func notThere(err error) bool {
	return errors.Is(err, engines.ErrNotStarted) || errors.Is(err, engines.ErrNotConfigured) || errors.Is(err, engines.ErrUnsupported)
}

func (b *bench) notStarted(when string) {
	if _, err := b.engine.Observe(b.ctx); !notThere(err) {
		b.fail("Observe %s: %v, want ErrNotStarted", when, err)
	}
	if _, err := b.engine.Stop(b.ctx, b.config.StopDeadline); !notThere(err) {
		b.fail("Stop %s: %v, want ErrNotStarted", when, err)
	}
}

func namesBadSettings(b *bench) {
	fields, err := b.engine.Configure(b.ctx, b.config.Bad)
	if err != nil {
		b.fail("Configure(Bad): %v; wrong settings are field errors", err)
	}
	for name := range b.config.Bad {
		if !slices.ContainsFunc(fields, func(f engines.FieldError) bool { return f.Field == name }) {
			b.fail("Configure(Bad) does not name %s: %v", name, fields)
		}
	}
	for _, f := range fields {
		if f.Message == "" {
			b.fail("field error of %s has no message", f.Field)
		}
	}
	if len(fields) > 0 {
		if _, err := b.engine.Start(b.ctx, b.request(), nil); !errors.Is(err, engines.ErrNotConfigured) {
			b.fail("Start after a Configure that failed: %v, want ErrNotConfigured", err)
		}
	}
}

func namesUnknownSettings(b *bench) {
	const unknown = "no_such_setting"
	fields, err := b.engine.Configure(b.ctx, engines.Settings{unknown: "x"})
	if err != nil || !slices.ContainsFunc(fields, func(f engines.FieldError) bool { return f.Field == unknown }) {
		b.fail("Configure does not name the setting it does not know: %v, %v", fields, err)
	}
}

// callsAtOnce is worth most under the race detector.
func callsAtOnce(b *bench) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := b.engine.Describe(b.ctx); err != nil {
				b.fail("Describe among others: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := b.engine.Configure(b.ctx, b.config.Settings); err != nil {
				b.fail("Configure among others: %v", err)
			}
		})
		wg.Go(func() { b.notStarted("among others") })
	}
	wg.Wait()
}

// facts checks that each fact says where it was read and what it is worth.
func (b *bench) facts(of string, facts matrix.Facts) {
	for _, f := range facts {
		if f.Name == "" || f.Where == "" || f.Standing == "" {
			b.fail("%s: fact %+v: name, where and standing are required", of, f)
		}
	}
}

func (b *bench) secrets(of string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		b.fail("%s is not JSON: %v", of, err)
	}
	for _, s := range b.config.Secrets {
		if strings.Contains(string(text), s) {
			b.fail("%s shows a secret", of)
		}
	}
}
