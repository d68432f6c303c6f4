package service

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// declared lists the values of the constants of a type in a source file, as they stand there.
func declared(t *testing.T, file, typ string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		name, isNamed := v.Type.(*ast.Ident)
		if lit, ok := v.Values[0].(*ast.BasicLit); ok && isNamed && name.Name == typ {
			out = append(out, strings.Trim(lit.Value, `"`))
		}
		return true
	})
	slices.Sort(out)
	return out
}

// Every Cause of the source has one row, so that none becomes an internal error by being forgotten.
func TestEveryCauseHasARow(t *testing.T) {
	causes := declared(t, "service.go", "Cause")
	var rows []string
	for _, r := range Causes {
		rows = append(rows, string(r.Cause))
	}
	slices.Sort(rows)
	if len(causes) < 10 || !slices.Equal(causes, rows) {
		t.Errorf("causes declared %v, in the table %v", causes, rows)
	}
}

func TestErrorsCrossTheWireUnchanged(t *testing.T) {
	for _, r := range Causes {
		for _, fix := range []string{"", "do this"} {
			in := &Error{Cause: r.Cause, Err: errors.New("what happened"), Fix: fix}
			st := StatusOf(fmt.Errorf("%w", in))
			if st.Code() != r.Code {
				t.Errorf("%s: code %v, want %v", r.Cause, st.Code(), r.Code)
			}
			out, ok := errors.AsType[*Error](FromStatus(st.Err()))
			if !ok || out.Cause != in.Cause || out.Error() != in.Error() {
				t.Errorf("%s came back as %v (%s)", r.Cause, out, out.Cause)
			}
			details(t, st.Details(), r)
		}
	}
	if st := StatusOf(nil); st.Code() != codes.OK {
		t.Errorf("no error is %v", st)
	}
	if got := StatusOf(fmt.Errorf("x: %w", context.Canceled)).Code(); got != codes.Aborted {
		t.Errorf("cancelled is %v", got)
	}
	if got := StatusOf(context.DeadlineExceeded).Code(); got != codes.DeadlineExceeded {
		t.Errorf("late is %v", got)
	}
}

func details(t *testing.T, list []any, r CauseRow) {
	t.Helper()
	var info *errdetails.ErrorInfo
	var failure *brokerv1.Failure
	for _, d := range list {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *brokerv1.Failure:
			failure = d
		}
	}
	if info.GetDomain() != Domain || info.GetReason() == "" || failure.GetExitCode() != int64(r.Exit) || failure.GetCause() != string(r.Cause) {
		t.Errorf("%s: details %v", r.Cause, list)
	}
}

func TestFieldsAndBothSidesAreDetails(t *testing.T) {
	st := StatusOf(FieldErrors{{"spec.model", "missing"}, {"spec.pairs[1]", "give two labels"}}.Err())
	var fields []string
	for _, d := range st.Details() {
		if b, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range b.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	if st.Code() != codes.InvalidArgument || fmt.Sprint(fields) != "[spec.model spec.pairs[1]]" {
		t.Errorf("%v, fields %v", st, fields)
	}
	refusal := matrix.Refusal{Pair: matrix.NewPair("a", "b"), Reason: matrix.DraftedVsRaw, Sides: []matrix.OfferSide{{Label: "a"}, {Label: "b"}}}
	st = StatusOf(Explained(fail(CauseNotComparable, "", "no pair is comparable"), []matrix.Refusal{refusal}))
	sides, forbids, why := 0, false, ""
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *brokerv1.Failure:
			sides = len(d.GetRefusals()[0].GetSides())
		case *errdetails.PreconditionFailure:
			forbids = true
		case *errdetails.ErrorInfo:
			why = d.GetReason()
		}
	}
	if sides != 2 || !forbids || why != "DRAFTED_VS_RAW" {
		t.Errorf("%d sides, precondition %v, reason %s", sides, forbids, why)
	}
}

// Whatever a status has to tell fits into the trailers of a small client, with the reason, and says what was cut.
func TestStatusFits(t *testing.T) {
	long := strings.Repeat("a line of a thousand\n%", 1000)
	var reasons []matrix.Reason
	for v := range matrix.NotComparable + 1 {
		reasons = append(reasons, v.Reasons()...)
	}
	var fields FieldErrors
	for range fieldsTold + 9 {
		fields = append(fields, FieldError{strings.Repeat("spec.deep", 100), long})
	}
	refusals := make([]matrix.Refusal, 780)
	for i := range refusals {
		refusals[i] = matrix.Refusal{Pair: matrix.NewPair("a", "b"), Reason: matrix.NoCommonQuant, Detail: "none", Sides: []matrix.OfferSide{{Label: "a"}, {Label: "b"}}}
	}
	for name, err := range map[string]error{
		"evidence":    fail(CauseEvidence, long, "%s", long),
		"fields":      fields.Err(),
		"field":       &InField{long, fail(CauseUsage, long, "%s", long)},
		"cell":        &Refused{Err: fail(CauseIdentity, "", "%s", long), Cell: long, Reasons: reasons},
		"pairs":       Explained(fail(CauseNotComparable, "", "none"), refusals),
		"pairs, long": &Refused{Err: fail(CauseNotComparable, "", "%s", long), Reasons: reasons, Refusals: refusals[:2]},
		"not ours":    errors.New(long),
	} {
		st := StatusOf(err)
		if n := trailers(st); n > trailerRoom {
			t.Errorf("%s: %d bytes", name, n)
		}
		f := FailureOf(err)
		var told *brokerv1.Failure
		var info *errdetails.ErrorInfo
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *brokerv1.Failure:
				told = d
			case *errdetails.ErrorInfo:
				info = d
			}
		}
		if st.Code() != causeRow(Cause(f.GetCause())).Code || info.GetReason() == "" || told.GetExitCode() != f.GetExitCode() {
			t.Errorf("%s: %v, reason %s, exit %d", name, st.Code(), info.GetReason(), told.GetExitCode())
		}
		if told.GetMessage() != f.GetMessage() && !strings.HasSuffix(told.GetMessage(), "more bytes)") {
			t.Errorf("%s: cut in silence: %q", name, told.GetMessage())
		}
		if n := len(told.GetRefusals()); n+int(told.GetRefusalsLeftOut()) != len(f.GetRefusals()) || n == 0 && len(f.GetRefusals()) > 0 {
			t.Errorf("%s: %d of %d refusals told, %d left out", name, n, len(f.GetRefusals()), told.GetRefusalsLeftOut())
		}
	}
}

// The cell of the details is the one that the message names, and so are the reasons.
func TestTheCellThatDecidesIsOne(t *testing.T) {
	of := func(metric string, primary bool, v matrix.Verdict, codes ...matrix.Reason) matrix.Cell {
		c := cell()
		c.ID.Metric, c.Metric.Primary, c.Verdict, c.Reasons = metric, primary, v, nil
		for _, r := range codes {
			c.Reasons = append(c.Reasons, matrix.CellReason{Code: r})
		}
		return c
	}
	for name, x := range map[string]struct {
		cells   []matrix.Cell
		require string
		metric  string
		reasons string
	}{
		"void":     {[]matrix.Cell{of("x", false, matrix.Void, matrix.HarnessFault), of("y", true, matrix.Void, matrix.NoValidBlock, matrix.ClockSeries), of("z", false, matrix.Void, matrix.CotenantSeries)}, "", "y", "NO_VALID_BLOCK,CLOCK_SERIES"},
		"identity": {[]matrix.Cell{of("x", true, matrix.Provisional, matrix.IdentityAssertFailed), of("y", true, matrix.Void, matrix.NoValidBlock)}, "", "x", "IDENTITY_ASSERT_FAILED"},
		"required": {[]matrix.Cell{of("x", true, matrix.Established), of("y", true, matrix.Provisional, matrix.FewBlocks)}, "established", "y", "FEW_BLOCKS"},
	} {
		st := StatusOf(Explained(Judge(matrix.Report{State: StateComplete, Cells: x.cells}, x.require), nil))
		want := cell().ID
		want.Metric = x.metric
		for _, d := range st.Details() {
			info, ok := d.(*errdetails.ErrorInfo)
			if ok && (info.GetMetadata()["cell"] != want.String() || info.GetMetadata()["reasons"] != x.reasons || !strings.HasPrefix(x.reasons, info.GetReason())) {
				t.Errorf("%s: %v", name, info)
			}
		}
		if !strings.Contains(st.Message(), want.String()) {
			t.Errorf("%s: message %q", name, st.Message())
		}
	}
}

// docs/grpc.md maps every cause and every reason to its status code and exit code, once each, and nothing else.
func TestDocumentedTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/grpc.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, ok := strings.Cut(string(page), "\n## Codes\n")
	if !ok {
		t.Fatal("docs/grpc.md has no part Codes")
	}
	rows := map[string]string{} // by the word that a row is about
	for line := range strings.Lines(tables) {
		if word, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
			if rows[word] != "" {
				t.Errorf("docs/grpc.md has two rows of %s", word)
			}
			rows[word] = strings.TrimSpace(line)
		}
	}
	row := func(word, want string) {
		if rows[word] != want {
			t.Errorf("docs/grpc.md says of %s\n%q, want\n%q", word, rows[word], want)
		}
		delete(rows, word)
	}
	for _, r := range Causes {
		row(string(r.Cause), fmt.Sprintf("| `%s` | %s | %d | %s |", r.Cause, code(r.Code), r.Exit, r.What))
	}
	reasons := declared(t, "../../matrix/reason.go", "Reason")
	if len(reasons) < 50 {
		t.Errorf("only %d reasons in the source", len(reasons))
	}
	for _, word := range reasons {
		r := matrix.Reason(word)
		v, err := r.Verdict()
		if err != nil {
			t.Error(err)
			continue
		}
		want := fmt.Sprintf("| `%s` | %s | OK | 0 |", r, v)
		c, fails := verdictCause(v)
		if r == matrix.IdentityAssertFailed { // its own exit code, whatever else the run holds
			c = CauseIdentity
		}
		if fails {
			x := causeRow(c)
			want = fmt.Sprintf("| `%s` | %s | %s | %d |", r, v, code(x.Code), x.Exit)
		}
		row(word, want)
	}
	for word, line := range rows {
		t.Errorf("docs/grpc.md has a row of %s, which is neither a cause nor a reason: %s", word, line)
	}
}

// code is a status code as gRPC's own documentation writes it.
func code(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}
