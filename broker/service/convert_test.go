package service

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// fill sets every field of a value to something, so that a converter that forgets one is found. Values of the vocabulary
// come from words.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		switch v.Interface().(type) {
		case matrix.Standing:
			v.SetString(string(matrix.Claimed))
		case matrix.PolicyKind:
			v.SetString(string(matrix.Drafted))
		case matrix.Status:
			v.SetString(string(matrix.StatusOwed))
		default:
			v.SetString("s" + string(rune('a'+*n%26)))
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(*n) / 8)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e, n)
		v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), e)
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*time.Time); ok {
			*t = time.Unix(int64(*n), 0).UTC()
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	}
}

func filled[T any]() T {
	var v T
	n := 0
	fill(reflect.ValueOf(&v).Elem(), &n)
	return v
}

// same compares by JSON, which is what commands print.
func same(t *testing.T, in, out any) {
	t.Helper()
	a, err1 := json.Marshal(in)
	b, err2 := json.Marshal(out)
	if err1 != nil || err2 != nil || string(a) != string(b) {
		t.Errorf("went in as\n%s\ncame out as\n%s (%v, %v)", a, b, err1, err2)
	}
}

func TestNothingIsLostOnTheWay(t *testing.T) {
	e := filled[Engine]()
	e.Problem = ""
	back, err := EngineOf(ToEngine(e))
	if err != nil {
		t.Fatal(err)
	}
	same(t, e, back)
	m := filled[CatalogModel]()
	for i := range m.Model.Artifacts {
		m.Model.Artifacts[i].Bytes, m.Model.Artifacts[i].Canary = matrix.Some(int64(0)), matrix.Some(filled[matrix.Canary]())
	}
	model, err := ModelOf(ToModel(m))
	if err != nil {
		t.Fatal(err)
	}
	same(t, m, model)
	info := filled[RunInfo]()
	same(t, info, RunOf(ToRun(info)))
	audit := filled[AuditResult]()
	same(t, audit, AuditOf(ToAudit(audit)))
	ev := filled[Event]()
	same(t, ev, EventOf(ToStep(ev), ev.At))
	x := filled[Inspection]()
	msg, err := ToInspection(x)
	if err != nil {
		t.Fatal(err)
	}
	inspection, err := InspectionOf(msg)
	if err != nil {
		t.Fatal(err)
	}
	same(t, x, inspection)
	q := Request{Model: "m", Profile: "quick", Quant: "all", Engines: []string{"a", "b"}, Pairs: []string{"a:b"}, Workload: "w", Points: []string{"c1"}, Seed: matrix.Some(uint64(0)), Budget: time.Hour, AcceptLikelyVoid: true}
	spec, err := ToSpec(q)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := SpecOf(spec)
	if err != nil {
		t.Fatal(err)
	}
	same(t, q, asked)
	for _, e := range []Experiment{{AA: true}, {Reload: &Reload{Instance: "a", With: "b", Loads: 12}}, {AB: &AB{New: "a", Old: "b", Margin: 0.01, SameBuild: true}}} {
		q := Request{Model: "m", Experiment: e}
		spec, err := ToSpec(q)
		if err != nil {
			t.Fatal(err)
		}
		asked, err := SpecOf(spec)
		if err != nil {
			t.Fatal(err)
		}
		same(t, q, asked)
	}
	pin := PinRequest{Label: "a", Model: "m", Quant: "q", Rehash: true}
	act := PinAct{Pin: "ref", Start: pin, Act: Act{By: "ana", Why: "first"}}
	for _, x := range []Trial{{Preflight: &PreflightRequest{Engines: []string{"a", "b"}, Model: "m", Quant: "q"}}, {Gate: &GateRequest{Engines: []string{"a"}, Model: "m", Quant: "q", Prompts: 2, Accept: true}},
		{CheckPin: &pin}, {RecordPin: &act}, {Advance: &act}} {
		asked, err := TrialOf(ToTrial(x))
		if err != nil {
			t.Fatal(err)
		}
		same(t, x, asked)
	}
	r := TrialResult{Preflights: []Preflight{filled[Preflight]()}, Gates: []Gate{filled[Gate]()}, Checked: new(filled[Checked]()), Pin: new(filled[Pin]())}
	result, err := ToTrialResult(r)
	if err != nil {
		t.Fatal(err)
	}
	came, err := TrialResultOf(result)
	if err != nil {
		t.Fatal(err)
	}
	same(t, r, came)
	known := filled[PinInfo]()
	recorded, err := ToPin(known)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := PinOf(recorded); err != nil {
		t.Error(err)
	} else {
		same(t, known, back)
	}
	carried := filled[Carried]()
	if back, err := PinnedOf(ToPinned(carried)); err != nil {
		t.Error(err)
	} else {
		same(t, carried, back)
	}
	diff := filled[Diff]()
	diff.A.Facts, diff.B.Facts = nil, nil // what differs is told, not all that is equal
	for i := range diff.Differs {
		diff.Differs[i].NotRecorded = false
	}
	for _, known := range []bool{true, false} {
		diff.TwoArms.Differ, diff.TwoArms.Unknown = known, !known
		if back, err := DiffOf(ToDiff(diff)); err != nil {
			t.Error(err)
		} else {
			same(t, diff, back)
		}
	}
	beside := filled[Comparison]()
	compared, err := ToComparison(beside)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ComparisonOf(compared); err != nil {
		t.Error(err)
	} else {
		same(t, beside, back)
	}
	p := Planned{Margin: &Margined{Margin: 0.01, SD: 0.003, Basis: "b", Blocks: 8, Loads: 20, Fits: true}, Plan: filled[matrix.Plan](), Notes: []string{"n"}, NoFiles: []string{"f"}, Missing: map[string][]string{"a": {"x"}}}
	plan, err := ToPlan(p)
	if err != nil {
		t.Fatal(err)
	}
	planned, err := PlannedOf(plan)
	if err != nil {
		t.Fatal(err)
	}
	same(t, p, planned)
}

// A request whose every field is set comes back whole, or is refused: none is dropped on the way.
func TestEveryFieldOfARequestTravels(t *testing.T) {
	known := map[string]bool{"Model": true, "Profile": true, "Quant": true, "Engines": true, "Pairs": true, "Workload": true, "Points": true, "Seed": true, "Budget": true,
		"Run": true /* run_id beside the spec */, "AcceptLikelyVoid": true, "Experiment": true}
	typ := reflect.TypeFor[Request]()
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() && !known[f.Name] {
			t.Errorf("RunSpec has no field for Request.%s", f.Name)
		}
	}
}

func cell() matrix.Cell {
	return matrix.Cell{ID: matrix.CellID{Pair: matrix.NewPair("a", "b"), Group: "x|raw", Point: "c1", Metric: "output_tok_s"}, Metric: matrix.Metric{Name: "output_tok_s"},
		Verdict: matrix.Withheld, Direction: matrix.DirNone, Reasons: []matrix.CellReason{{Code: matrix.AAMissing}}}
}

// numbersIn lists the numeric fields that are set below a message, by name.
func numbersIn(m protoreflect.Message, out map[string]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				numbersIn(v.List().Get(i).Message(), out)
			}
		case f.Message() != nil && !f.IsMap():
			numbersIn(v.Message(), out)
		case f.Kind() == protoreflect.DoubleKind:
			out[string(f.Name())] = true
		}
		return true
	})
}

func TestACellThatMayNotShowANumberHasNone(t *testing.T) {
	c := cell()
	m, err := ToCell(c)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	numbersIn(m.ProtoReflect(), set)
	if m.Numbers != nil || len(set) > 0 {
		t.Errorf("a withheld cell has numbers: %v", set)
	}
	// An interval without its ratio: nothing from which the ratio can be read.
	n := matrix.Numbers{Interval: matrix.Some(filled[matrix.Interval]())}
	c.Numbers = matrix.Some(n)
	if m, err = ToCell(c); err != nil {
		t.Fatal(err)
	}
	i := m.GetNumbers().GetInterval()
	if i.Theta != nil || i.Ratio != nil || i.MedianRatio != nil || i.MinRatio != nil || i.MaxRatio != nil || i.RatioLo == nil {
		t.Errorf("interval %v", i)
	}
	// NaN and infinity are no numbers.
	n.ShowRatio = true
	n.Interval = matrix.Some(matrix.Interval{Ratio: matrix.Some(math.NaN()), Theta: matrix.Some(math.Inf(1)), Lo: 0})
	n.QDir = matrix.Some(math.NaN())
	c.Numbers = matrix.Some(n)
	if m, err = ToCell(c); err != nil {
		t.Fatal(err)
	}
	if i := m.GetNumbers().GetInterval(); i.Ratio != nil || i.Theta != nil || i.Lo == nil || m.GetNumbers().QDir != nil {
		t.Errorf("numbers %v", m.GetNumbers())
	}
}

func TestUnknownWordsAreErrors(t *testing.T) {
	c := cell()
	c.Reasons[0].Code = "SOMETHING"
	if _, err := ToCell(c); err == nil {
		t.Error("an unknown reason passes")
	}
	c = cell()
	c.Direction = "SIDEWAYS"
	if _, err := ToCell(c); err == nil {
		t.Error("an unknown direction passes")
	}
	c = cell()
	c.Verdict = 99
	if _, err := ToCell(c); err == nil {
		t.Error("an unknown verdict passes")
	}
	m := ToEngine(Engine{Label: "a", Policy: matrix.Policy{Kind: matrix.Raw}})
	m.Policy.Kind = brokerv1.PolicyKind(9).Enum()
	if _, err := EngineOf(m); err == nil {
		t.Error("an unknown enum value becomes a default")
	}
}

// No message of the API has a field for a figure that sums cells up.
func TestNoHeadline(t *testing.T) {
	files := []protoreflect.FileDescriptor{brokerv1.File_broker_v1_report_proto, brokerv1.File_broker_v1_run_proto, brokerv1.File_broker_v1_plan_proto, brokerv1.File_broker_v1_trial_proto, brokerv1.File_broker_v1_engine_proto}
	for _, f := range files {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for j := range m.Fields().Len() {
				name := string(m.Fields().Get(j).Name())
				inCell := slices.Contains([]protoreflect.Name{"Interval", "Numbers", "MarginCell", "CellComparison"}, m.Name())
				for _, bad := range []string{"ratio", "speedup", "score", "geomean", "overall", "winner", "average"} {
					if strings.Contains(name, bad) && !inCell {
						t.Errorf("%s.%s", m.Name(), name)
					}
				}
				if !m.Fields().Get(j).HasPresence() && !m.Fields().Get(j).IsList() && !m.Fields().Get(j).IsMap() {
					t.Errorf("%s.%s has no presence: absent would be zero", m.Name(), name)
				}
			}
		}
	}
}

// A trial that cannot be used says in which fields.
func TestFieldsOfATrialThatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		spec   *brokerv1.TrialSpec
		fields []string
	}{
		{"nothing", nil, []string{"trial"}},
		{"no kind", &brokerv1.TrialSpec{}, []string{"trial"}},
		{"no engines", &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_Preflight{}}, []string{"trial.preflight.engines", "trial.preflight.model"}},
		{"a path", &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_Gate{Gate: &brokerv1.GateSpec{Engines: []string{"engines/a", "engines/../b"}, Model: new("models/m")}}}, []string{"trial.gate.engines[1]"}},
		{"nobody, no reason", ToTrial(Trial{RecordPin: &PinAct{Pin: "ref", Start: PinRequest{Label: "a", Model: "m"}, Act: Act{By: " "}}}), []string{"trial.record_pin.who", "trial.record_pin.why"}},
		{"a pin that is a path", ToTrial(Trial{Advance: &PinAct{Pin: "../ref", Start: PinRequest{Label: "a"}, Act: Act{By: "ana", Why: "w"}}}), []string{"trial.advance_pin.pin", "trial.advance_pin.start.model"}},
		{"no start", &brokerv1.TrialSpec{Kind: &brokerv1.TrialSpec_CheckPin{}}, []string{"trial.check_pin.engine", "trial.check_pin.model"}},
	} {
		_, err := TrialOf(c.spec)
		bad, _ := errors.AsType[FieldErrors](err)
		var got []string
		for _, x := range bad {
			got = append(got, x.Field)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.fields) {
			t.Errorf("%s: fields %v, want %v", c.name, got, c.fields)
		}
	}
}

func TestNamesOfArms(t *testing.T) {
	for name, want := range map[string]ArmName{
		"a": {Name: "a"}, "r:a": {Name: "r:a"}, "engines/a": {Name: "a", Of: EnginePrefix}, "runs/r": {Name: "r", Of: RunPrefix}, "runs/r:a": {Name: "r:a", Of: RunPrefix},
	} {
		if got, err := ArmNameOf(name); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "runs/", "/etc", "runs/../etc", "engines/a:b", "runs/r:a:b", "runs/r:", "a b", "engines/runs/r"} {
		if got, err := ArmNameOf(name); err == nil {
			t.Errorf("%q passes as %v", name, got)
		}
	}
}

func TestForeignBytesAreMadeText(t *testing.T) {
	e := ToEngine(Engine{Label: "a", Problem: "said \xff\xfe"})
	if _, err := protojson.Marshal(e); err != nil {
		t.Error(err)
	}
}
