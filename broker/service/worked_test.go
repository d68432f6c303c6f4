package service

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"enginebroker/matrix"
)

func wantCell(t *testing.T, c matrix.Cell, v matrix.Verdict, codes ...matrix.Reason) {
	t.Helper()
	if c.Verdict != v {
		t.Errorf("%s is %s %v, want %s", c.ID, c.Verdict, c.Reasons, v)
	}
	for _, code := range codes {
		if !slices.Contains(c.Codes(), code) {
			t.Errorf("%s: %v lacks %s", c.ID, c.Codes(), code)
		}
	}
}

func wantText(t *testing.T, text string, have []string, not ...string) {
	t.Helper()
	for _, s := range have {
		if !strings.Contains(text, s) {
			t.Errorf("the report does not show %q:\n%s", s, text)
		}
	}
	for _, s := range not {
		if strings.Contains(text, s) {
			t.Errorf("the report shows %q:\n%s", s, text)
		}
	}
}

// The rows of protocol §4.6, from evidence on disk to the printed report. The evidence of row 2, a published ratio that is not
// the ratio of its figures, is a claim; testdata/script/claims.txtar prints it.

func TestEvidence02PublishedRatio(t *testing.T) {
	ratio := func(value, of string) Claim {
		return Claim{Name: "grid-1", Figures: []Figure{{Metric: "tok/s", Value: "9.366", Unit: "tok/s"}, {Metric: "ratio", Value: value, Unit: of}}}
	}
	for _, c := range []struct {
		value, of, says string
	}{
		{"0.8384", "9.366/11.3646", "the stated arms give 0.8241, not 0.8384"},
		{"0.9561", "10.756/11.250", ""},
		{"~0.82", "9.366/11.3646", ""}, // rounded, not wrong
		{"0.81", "9.366/11.3646", "not 0.8100"},
		{"0.8384", "tok/s", ""}, // a unit, not two figures
		{"0", "1/2", ""},
		{"NaN", "1/2", ""},
		{"-1", "1/2", ""},
	} {
		got, err := Inconsistent(ratio(c.value, c.of))
		if err != nil || (len(got) > 0) != (c.says != "") {
			t.Errorf("%s of %s: %+v, %v", c.value, c.of, got, err)
			continue
		}
		if len(got) > 0 && (got[0].Code != matrix.RatioInconsistent || !strings.Contains(got[0].Detail, c.says) || got[0].Next == "") {
			t.Errorf("%s of %s: %+v", c.value, c.of, got)
		}
	}
}

func TestEvidence01TwoGridsOf349(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, nil)
	r.value = func(grid int, slot matrix.Slot, _ string) float64 {
		return map[string][]float64{"ours": {9.366, 10.756}, "vllm": {11.3646, 11.250}}[slot.Arm][grid]
	}
	r.load = func(l *matrix.LoadRecord) {
		ready, _ := l.Ready.Get()
		ready.Facts = slices.DeleteFunc(slices.Clone(ready.Facts), func(f matrix.Fact) bool { return f.Name == matrix.FactBuild })
		l.Ready = matrix.Some(ready)
	}
	r.grid(3)
	r.grid(2)
	r.close()
	rep := r.report()
	wantCell(t, cellOf(t, rep, "c1"), matrix.NotReproduced, matrix.GridShiftArm, matrix.GridShiftRatio, matrix.BuildUnrecorded)
	wantText(t, printed(t, rep), []string{"NOT_REPRODUCED", "9.366", "10.76", "11.36", "11.25"}, "0.8241", "0.9561", "0.8384", "FASTER:", "SLOWER:")
	var b strings.Builder
	if err := Explain(&b, cellOf(t, rep, "c1"), Look{Width: 200}); err != nil {
		t.Fatal(err)
	}
	wantText(t, strings.Join(strings.Fields(b.String()), " "), []string{"moved = [ours]", "only ours moved, so it is neither clock nor box"}, "0.8241")
	if err := Judge(rep, ""); causeOf(err) != CauseWithheld {
		t.Errorf("the run fails with %v", err)
	}
}

// testdata/script/protocol.txtar prints this one.
func TestEvidence03AnotherMethod(t *testing.T) {
	s := testService(t)
	short := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	short.Method.Points[0].PromptTokens = 5
	short.MethodID, _ = short.Method.ID()
	for name, p := range map[string]matrix.Plan{"grid": evidencePlan(t, 3, []string{"c1"}, "ours", "vllm"), "reload": short} {
		r := newEvidence(t, s, name, p, map[string]float64{"ours": 11.76, "vllm": 11.25})
		r.grid(3)
		r.close()
	}
	c, err := s.Compare(t.Context(), "grid", "reload")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Cells) != 0 || len(c.Reasons) != 1 || c.Reasons[0].Code != matrix.MethodMismatch || !strings.Contains(c.Reasons[0].Detail, "prompt_tokens: 1024, 5") {
		t.Errorf("%+v", c)
	}
	if err := JudgeComparison(c); causeOf(err) != CauseNotComparable {
		t.Errorf("fails with %v", err)
	}
}

func TestEvidence04ReferenceWithoutPin(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	p.Groups[0].Arms[1].Pin = ""
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.grid(3)
	r.grid(2)
	r.close()
	rep := r.report()
	c := cellOf(t, rep, "c1")
	wantCell(t, c, matrix.Provisional, matrix.ReferenceNotPin)
	if c.Direction != matrix.DirSlower {
		t.Errorf("direction %s", c.Direction)
	}
	wantText(t, printed(t, rep), []string{"PROVISIONAL", "0.909", "REFERENCE_NOT_PIN"})
}

func TestEvidence05FailedRequests(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1", "c4", "c8"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.broken = func(grid int, slot matrix.Slot, point string) bool {
		return grid == 0 && slot.Arm == "ours" && slot.Superblock == 1 && !slot.LeadIn && point != "c4"
	}
	r.grid(3)
	r.grid(2)
	r.close()
	rep := r.report()
	for _, point := range []string{"c1", "c8"} {
		c := cellOf(t, rep, point)
		wantCell(t, c, matrix.Withheld, matrix.EngineVoidOnRecord)
		if c.Numbers.Present() {
			t.Errorf("%s shows numbers", c.ID)
		}
		for _, l := range rep.Legs {
			if l.ID.Point == point && len(l.Values) > 0 {
				t.Errorf("leg %s at %s shows values of a withheld cell", l.LoadID, point)
			}
		}
	}
	wantCell(t, cellOf(t, rep, "c4"), matrix.Established)
	wantText(t, printed(t, rep), []string{"WITHHELD", "ENGINE_VOID_ON_RECORD", "ESTABLISHED"})
}

func TestEvidence06And07Refusals(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	side := func(l, opens string) matrix.OfferSide {
		return matrix.OfferSide{Label: l, Opens: []matrix.Offer{{Artifact: opens}}}
	}
	p.Refusals = []matrix.Refusal{
		{Pair: matrix.NewPair("ours", "sglang"), Reason: matrix.DraftedVsRaw, Detail: "sglang is drafted, ours raw", Fix: "run both raw", Sides: []matrix.OfferSide{side("ours", "nvfp4"), side("sglang", "nvfp4")}},
		{Pair: matrix.NewPair("vllm", "llamacpp"), Reason: matrix.NoCommonQuant, Detail: "safetensors and GGUF", Fix: "none", Sides: []matrix.OfferSide{side("llamacpp", "q4"), side("vllm", "nvfp4")}},
	}
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	r.grid(3)
	r.grid(2)
	r.close()
	rep := r.report()
	var refused []matrix.Cell
	for _, c := range rep.Cells {
		if c.ID.Group == "" {
			refused = append(refused, c)
		}
	}
	if len(refused) != 2 {
		t.Fatalf("%d refused cells", len(refused))
	}
	wantCell(t, refused[0], matrix.NotComparable, matrix.DraftedVsRaw)
	wantCell(t, refused[1], matrix.NotComparable, matrix.NoCommonQuant)
	wantText(t, printed(t, rep), []string{"NOT_COMPARABLE", "DRAFTED_VS_RAW", "NO_COMMON_QUANT"}, "38.28")
	if err := Judge(rep, ""); err != nil {
		t.Errorf("planned refusals fail the run: %v", err)
	}
}

func TestEvidence08NineWindows(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	r := newEvidence(t, s, "r", p, map[string]float64{"ours": 10, "vllm": 11})
	n := 0
	r.leg = func(l *matrix.LegRecord) {
		c, _ := l.Clock.Get()
		c.Seconds = slices.Clone(c.Seconds)
		for k := range c.Seconds {
			c.Seconds[k].MHz = 2400 - int64(k%2)*int64(240+48*(n%9))
			c.Seconds[k].Bits = uint64(k/29) * 0x20
		}
		n++
		l.Clock = matrix.Some(c)
	}
	r.grid(3)
	r.close()
	rep := r.report()
	wantCell(t, cellOf(t, rep, "c1"), matrix.Void, matrix.NoValidBlock, matrix.TooManyEnvVoids)
	wantText(t, printed(t, rep), []string{"VOID", "CLOCK_SPREAD", "CLOCK_THROTTLED"}, "FASTER:", "SLOWER:", "0.909")
	for _, l := range rep.Legs {
		if !slices.Equal(l.Gate.Codes, []matrix.LegCode{matrix.ClockSpread, matrix.ClockThrottled}) || l.Gate.Cause != matrix.CauseEnv {
			t.Errorf("leg %s: %v, %s", l.LoadID, l.Gate.Codes, l.Gate.Cause)
		}
	}
	if err := Judge(rep, ""); causeOf(err) != CauseVoid {
		t.Errorf("fails with %v", err)
	}
}

func TestEvidence09TwoLegsEach(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 1, []string{"c1"}, "dequant", "packed")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, map[string]float64{"packed": 11.195, "dequant": 9.79})
	r.grid(1)
	r.close()
	rep := r.report()
	wantCell(t, cellOf(t, rep, "c1"), matrix.Withheld, matrix.InsufficientBlocks)
	wantText(t, printed(t, rep), []string{"WITHHELD", "INSUFFICIENT_BLOCKS"}, "11.195", "9.79", "0.87", "1.14")
}

func TestEvidence10AcrossBoots(t *testing.T) {
	s := testService(t)
	p := evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	passAA(t, s, p)
	r := newEvidence(t, s, "r", p, nil)
	r.value = func(grid int, slot matrix.Slot, _ string) float64 {
		return map[string]float64{"ours": 1000, "vllm": 1100}[slot.Arm] / []float64{82.17, 88.10}[grid]
	}
	r.grid(3)
	r.grid(2)
	r.close()
	wantCell(t, cellOf(t, r.report(), "c1"), matrix.Provisional, matrix.GridShiftCommon)
	wantText(t, printed(t, r.report()), []string{"PROVISIONAL", "GRID_SHIFT_COMMON"})

	// As a pair of windows: a leg that ended on another boot is void.
	p = evidencePlan(t, 3, []string{"c1"}, "ours", "vllm")
	r = newEvidence(t, s, "windows", p, map[string]float64{"ours": 10, "vllm": 11})
	r.leg = func(l *matrix.LegRecord) {
		if l.ID.Arm == "ours" {
			l.Env.BootIDStart, l.Env.BootIDEnd = "another", "another"
		}
	}
	r.grid(3)
	r.close()
	wantCell(t, cellOf(t, r.report(), "c1"), matrix.Void, matrix.NoValidBlock)
	var b strings.Builder
	if err := Explain(&b, cellOf(t, r.report(), "c1"), Look{Width: 200}); err != nil {
		t.Fatal(err)
	}
	wantText(t, b.String(), []string{"VOID", "CLOCK_BOOT_MISMATCH"}, "FASTER:", "SLOWER:", "ratio:")
}

func causeOf(err error) Cause {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Cause
	}
	return ""
}
