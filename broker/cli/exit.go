package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"enginebroker/broker/service"
)

// Exit codes, one per cause.
const (
	ExitOK            = 0
	ExitInternal      = 1
	ExitUsage         = 2
	ExitNotComparable = 3
	ExitVoid          = 4
	ExitWithheld      = 5
	ExitIdentity      = 6
	ExitNotInstalled  = 7
	ExitRequire       = 8
	ExitEvidence      = 9
	ExitBusy          = 10
	ExitDiffers       = 11
	ExitInterrupted   = 130
)

var exitWords = []struct {
	code int
	what string
}{
	{ExitOK, "the plan is complete and every comparable cell is ESTABLISHED, PROVISIONAL or INCONCLUSIVE"},
	{ExitInternal, "a fault of the program or the system; the message says which"},
	{ExitUsage, "the command line, a configuration or a catalog file cannot be used, or names what does not exist"},
	{ExitNotComparable, "no pair is comparable, or a cell turned out NOT_COMPARABLE"},
	{ExitVoid, "a cell is VOID"},
	{ExitWithheld, "a cell is WITHHELD or NOT_REPRODUCED"},
	{ExitIdentity, "what runs is not what its pin says"},
	{ExitNotInstalled, "an engine that was asked for is not installed or its plugin cannot be used"},
	{ExitRequire, "the level asked for with --require was not reached"},
	{ExitEvidence, "evidence is missing, edited or does not give the numbers of the report"},
	{ExitBusy, "another broker holds this box or this run"},
	{ExitDiffers, "a check found a difference or a failure: a stream record, a protocol case, a margin, a preflight, a gate, the box"},
	{ExitInterrupted, "interrupted; the evidence is kept and the message says how to resume"},
}

func exitTable() string {
	var b strings.Builder
	for _, w := range exitWords {
		fmt.Fprintf(&b, "  %3d  %s\n", w.code, w.what)
	}
	return b.String()
}

// exitError carries an exit code; a nil err has been told to the user already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit ends a command with a code, after everything was said.
func exit(code int) error {
	if code == ExitOK {
		return nil
	}
	return &exitError{code: code}
}

func usage(format string, args ...any) error {
	return &exitError{code: ExitUsage, err: fmt.Errorf(format, args...)}
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*service.Error](err); ok {
		for _, row := range service.Causes {
			if row.Cause == e.Cause {
				return row.Exit
			}
		}
		return ExitInternal
	}
	if errors.Is(err, context.Canceled) {
		return ExitInterrupted
	}
	// cobra's own complaints about commands and arguments
	for _, s := range []string{"unknown command", "accepts ", "requires ", "required flag"} {
		if strings.HasPrefix(err.Error(), s) {
			return ExitUsage
		}
	}
	return ExitInternal
}
