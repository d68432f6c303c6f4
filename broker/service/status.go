package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"enginebroker/matrix"
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

// Errors cross the wire in two functions, StatusOf and FromStatus.

// Domain is the domain of every ErrorInfo.
const Domain = "broker.v1"

// ReasonMeasuring is the ErrorInfo reason of a call that has to wait until a timed window is over.
const ReasonMeasuring = "MEASURING"

// CauseRow says how a cause is told to programs.
type CauseRow struct {
	Cause Cause
	Code  codes.Code
	Exit  int // exit code of the command line
	What  string
}

// Causes is the table of every cause (docs/grpc.md shows it).
var Causes = []CauseRow{
	{CauseUsage, codes.InvalidArgument, 2, "the request, the configuration or a catalog file cannot be used"},
	{CauseNotFound, codes.NotFound, 2, "a run, cell, model or instance that does not exist"},
	{CauseNotComparable, codes.FailedPrecondition, 3, "no pair is comparable, or a cell turned out NOT_COMPARABLE"},
	{CauseVoid, codes.FailedPrecondition, 4, "a cell is VOID"},
	{CauseWithheld, codes.FailedPrecondition, 5, "a cell is WITHHELD or NOT_REPRODUCED"},
	{CauseIdentity, codes.FailedPrecondition, 6, "what runs is not what its pin says"},
	{CauseNotInstalled, codes.FailedPrecondition, 7, "an engine that was asked for is not installed"},
	{CauseRequire, codes.FailedPrecondition, 8, "the level asked for was not reached"},
	{CauseEvidence, codes.DataLoss, 9, "evidence is missing, edited or does not give the numbers of the report"},
	{CauseBusy, codes.Unavailable, 10, "another broker holds the box or the run, or a run measures right now"},
	{CauseDiffers, codes.FailedPrecondition, 11, "a primary cell does not hold the margin that was asked for"},
	{CauseInterrupted, codes.Aborted, 130, "interrupted; the evidence is kept"},
	{CauseInternal, codes.Internal, 1, "a fault of the program or the system"},
}

func causeRow(c Cause) CauseRow {
	for _, r := range Causes {
		if r.Cause == c {
			return r
		}
	}
	return Causes[len(Causes)-1]
}

// verdictCause is the cause that a cell of a verdict fails with; none where the verdict passes, unless a level above it is required.
func verdictCause(v matrix.Verdict) (Cause, bool) {
	switch v {
	case matrix.NotComparable:
		return CauseNotComparable, true
	case matrix.Void:
		return CauseVoid, true
	case matrix.Withheld, matrix.NotReproduced:
		return CauseWithheld, true
	}
	return "", false
}

// FieldError is one field of a request that cannot be used.
type FieldError struct {
	Field   string // path of the field: spec.pairs[1]
	Message string
}

// FieldErrors are all of them.
type FieldErrors []FieldError

func (f FieldErrors) Error() string {
	lines := make([]string, len(f))
	for i, x := range f {
		lines[i] = x.Field + ": " + x.Message
	}
	return strings.Join(lines, "; ")
}

// fieldsTold bounds what a status carries in its trailers, whatever a request holds.
const fieldsTold = 20

// Err is the error of a request with these fields; none where there are none.
func (f FieldErrors) Err() error {
	if len(f) == 0 {
		return nil
	}
	if more := len(f) - fieldsTold; more > 0 {
		f = append(slices.Clone(f[:fieldsTold]), FieldError{f[fieldsTold].Field, fmt.Sprintf("and %d more fields cannot be used", more)})
	}
	return &Error{Cause: CauseUsage, Err: f}
}

// InField is the error of a field that no rule of names refuses: what it names is not here, or does not go with the rest.
type InField struct {
	Field string
	Err   error
}

func (e *InField) Error() string { return e.Err.Error() }
func (e *InField) Unwrap() error { return e.Err }

// About says which field of a request an error of usage is about, unless the error says so itself.
func About(field string, err error) error {
	e, ok := errors.AsType[*Error](err)
	_, said := errors.AsType[*InField](err)
	if !ok || said || e.Cause != CauseUsage {
		return err
	}
	return &InField{field, err}
}

// Refused is a failure with what the protocol has to say about it.
type Refused struct {
	Err      error
	Reasons  []matrix.Reason // the first one decides
	Cell     string
	Refusals []matrix.Refusal // both sides
}

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }

// decided is a failure that a cell decides.
func decided(c matrix.Cell, err *Error) error {
	return &Refused{Err: err, Cell: c.ID.String(), Reasons: c.Codes()}
}

// Explained adds its refusals to the failure of a plan or a report of which no pair is comparable.
func Explained(err error, refusals []matrix.Refusal) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Cause != CauseNotComparable {
		return err
	}
	out := &Refused{Err: err, Refusals: refusals}
	if r, ok := errors.AsType[*Refused](err); ok {
		out.Cell, out.Reasons = r.Cell, r.Reasons
		return out
	}
	for _, r := range refusals {
		if !slices.Contains(out.Reasons, r.Reason) {
			out.Reasons = append(out.Reasons, r.Reason)
		}
	}
	return out
}

// StateError says that a resource is not in the state that a call needs, or that its name or id is taken.
type StateError struct {
	Err    error
	Code   codes.Code
	Reason string // of the ErrorInfo: REQUEST_ID_REUSED, RUN_EXISTS, RUN_ENDED …
}

func (e *StateError) Error() string { return e.Err.Error() }
func (e *StateError) Unwrap() error { return e.Err }

// Taken is the error of a name or id that stands for something else already.
func Taken(reason, fix, format string, args ...any) error {
	return &StateError{Err: fail(CauseUsage, fix, format, args...), Code: codes.AlreadyExists, Reason: reason}
}

// Ended is the error of a call that needs a run that waits, runs or stopped, where it is otherwise.
func Ended(reason, fix, format string, args ...any) error {
	return &StateError{Err: fail(CauseUsage, fix, format, args...), Code: codes.FailedPrecondition, Reason: reason}
}

// Exhausted is the error of a call over a limit of the daemon.
func Exhausted(format string, args ...any) error {
	return &StateError{Err: fail(CauseBusy, "", format, args...), Code: codes.ResourceExhausted, Reason: "LIMIT"}
}

// Bad is the error of one field of a request.
func Bad(field, format string, args ...any) error {
	return FieldErrors{{Field: field, Message: fmt.Sprintf(format, args...)}}.Err()
}

// MeasuringError says that a call has to wait until a timed window is over.
type MeasuringError struct{ Retry time.Duration }

func (e *MeasuringError) Error() string {
	return "a timed window is open: nothing expensive is done until it closes"
}

// FailureOf is the message of a failure.
func FailureOf(err error) *brokerv1.Failure {
	f := &brokerv1.Failure{}
	cause := CauseInternal
	if _, ok := errors.AsType[*MeasuringError](err); ok {
		cause = CauseBusy
	}
	if e, ok := errors.AsType[*Error](err); ok {
		cause = e.Cause
		f.Message, f.Fix = text(e.Err.Error()), text(e.Fix)
	} else {
		f.Message = text(err.Error())
	}
	if errors.Is(err, context.Canceled) && cause == CauseInternal {
		cause = CauseInterrupted
	}
	if r, ok := errors.AsType[*Refused](err); ok {
		f.Refusals = each(r.Refusals, toRefusal)
	}
	f.Cause, f.ExitCode = text(string(cause)), count(causeRow(cause).Exit)
	return f
}

// OfFailure is the error of a failure.
func OfFailure(f *brokerv1.Failure) error {
	return &Error{Cause: Cause(f.GetCause()), Err: errors.New(f.GetMessage()), Fix: f.GetFix()}
}

// StatusOf is the status of an error, with as much of its details as a client takes.
func StatusOf(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	if st, ok := status.FromError(err); ok {
		return st // made by the transport, or by a limit of it
	}
	return fitted(FailureOf(err), func(f *brokerv1.Failure, clip func(string) string) *status.Status { return statusOf(err, f, clip) })
}

// statusOf makes the status of an error with what of its failure is told; its texts are clipped.
func statusOf(err error, f *brokerv1.Failure, clip func(string) string) *status.Status {
	row := causeRow(Cause(f.GetCause()))
	message := clip(f.GetMessage())
	info := &errdetails.ErrorInfo{Reason: strings.ToUpper(f.GetCause()), Domain: Domain, Metadata: map[string]string{"cause": f.GetCause()}}
	details := []protoadapt.MessageV1{info, f}
	code := row.Code
	if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	if r, ok := errors.AsType[*Refused](err); ok && len(r.Reasons) > 0 {
		info.Reason = string(r.Reasons[0])
		names := make([]string, len(r.Reasons))
		for i, x := range r.Reasons {
			names[i] = string(x)
		}
		info.Metadata["reasons"] = strings.Join(names, ",")
		if r.Cell != "" {
			info.Metadata["cell"] = clip(r.Cell)
		}
	}
	if x, ok := errors.AsType[*StateError](err); ok {
		code, info.Reason = x.Code, x.Reason
	}
	if code == codes.ResourceExhausted {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	}
	if m, ok := errors.AsType[*MeasuringError](err); ok {
		code = codes.Unavailable
		info.Reason = ReasonMeasuring
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(m.Retry)})
	}
	if bad, ok := errors.AsType[FieldErrors](err); ok {
		b := &errdetails.BadRequest{}
		for _, x := range bad {
			b.FieldViolations = append(b.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: clip(x.Field), Description: clip(x.Message)})
		}
		details = append(details, b)
	}
	if x, ok := errors.AsType[*InField](err); ok {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: clip(x.Field), Description: message}}})
	}
	switch Cause(f.GetCause()) {
	case CauseIdentity, CauseBusy, CauseNotInstalled, CauseNotComparable:
		details = append(details, &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
			{Type: strings.ToUpper(f.GetCause()), Subject: info.Metadata["cell"], Description: message}}})
	}
	st := status.New(code, message)
	if full, err := st.WithDetails(details...); err == nil {
		return full
	}
	return st
}

// FromStatus is the error of a status, as the local service would have returned it.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		if f, ok := d.(*brokerv1.Failure); ok {
			return OfFailure(f)
		}
	}
	switch st.Code() {
	case codes.Canceled:
		return &Error{Cause: CauseInterrupted, Err: context.Canceled}
	case codes.Unavailable:
		return &Error{Cause: CauseInternal, Err: errors.New("the daemon cannot be reached: " + st.Message()), Fix: "start one with broker serve, or leave --server out"}
	case codes.Unimplemented, codes.InvalidArgument:
		return &Error{Cause: CauseUsage, Err: errors.New(st.Message())}
	}
	return &Error{Cause: CauseInternal, Err: errors.New(st.Code().String() + ": " + st.Message())}
}
