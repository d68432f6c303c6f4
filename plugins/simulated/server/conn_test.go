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
	// Accepted first: the kernel stamps packets from the moment that some socket asks for stamps.
	s, err := listener{l}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := now()
	if _, err := io.WriteString(c, "ask"); err != nil {
		t.Fatal(err)
	}
	after := now()
	if at := arrived(withConn(t.Context(), s)); at < after {
		t.Errorf("nothing was read, it says %v, now is %v", at, after)
	}
	time.Sleep(20 * time.Millisecond) // what the server does meanwhile must not count
	b := make([]byte, 8)
	if n, err := s.Read(b); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	// Two clocks are compared: half a millisecond of slack for a step between the two readings.
	if at, slack := arrived(withConn(t.Context(), s)), 500*time.Microsecond; at < before-slack || at > after+slack {
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
