package server

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// A connection knows when the kernel had the bytes, not when they were read.
func TestArrived(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := listener{l}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := make([]byte, 8)
	// The kernel begins to stamp some time after the first socket asked for it, so the first packets may lack a stamp and
	// count from when they were read. Within a second they have it.
	var before, after, at time.Duration
	for range 50 {
		before = now()
		if _, err := io.WriteString(c, "ask"); err != nil {
			t.Fatal(err)
		}
		after = now()
		time.Sleep(20 * time.Millisecond) // what the server does meanwhile must not count
		if n, err := s.Read(b); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		if at = arrived(withConn(t.Context(), s)); at < after+10*time.Millisecond {
			break
		}
	}
	// Two clocks are compared: half a millisecond of slack for a step between the two readings.
	if slack := 500 * time.Microsecond; at < before-slack || at > after+slack {
		t.Errorf("arrived at %v, written between %v and %v", at, before, after)
	}
	if at := arrived(context.Background()); at < after {
		t.Errorf("a request without a connection arrived at %v", at)
	}
	c.Close()
	if n, err := s.Read(b); n != 0 || err != io.EOF {
		t.Error(n, err)
	}
}
