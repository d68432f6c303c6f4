package cli

import (
	"errors"
	"testing"

	"enginebroker/broker/service"
)

// The exit code that a daemon tells with a failure is the one that the command line ends with.
func TestExitCodesAreThoseOfTheService(t *testing.T) {
	for _, r := range service.Causes {
		if got := exitCode(&service.Error{Cause: r.Cause, Err: errors.New("x")}); got != r.Exit {
			t.Errorf("%s: the command line exits with %d, a daemon says %d", r.Cause, got, r.Exit)
		}
	}
}
