package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func TestServer(t *testing.T) {
	s := redistest.Start(t, "maxmemory-policy volatile-ttl")
	if got := s.CLI("SET", "a", "1"); got != "OK" {
		t.Fatalf("SET answered %q, want OK", got)
	}
	c := s.Client()
	if got := c.ConfigGet(t.Context(), "maxmemory-policy").Val()["maxmemory-policy"]; got != "volatile-ttl" {
		t.Fatalf("maxmemory-policy is %q, want what the test asked for", got)
	}
	before := s.PID()
	s.Restart()
	if n := c.Exists(t.Context(), "a").Val(); n != 0 || s.PID() == before {
		t.Fatalf("after a restart there are %d keys in process %d, want none in another than %d", n, s.PID(), before)
	}
	if s.CPU() <= 0 {
		t.Fatal("a process that has answered has used no processor time")
	}
}

func TestStop(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	ping := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return c.Ping(ctx).Err()
	}
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	answered := make(chan error, 1)
	go func() { answered <- c.Ping(t.Context()).Err() }()
	select {
	case err := <-answered:
		t.Fatalf("a stopped process answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.Cont()
	if err := <-answered; err != nil {
		t.Fatalf("after it was resumed: %v", err)
	}
	s.Kill()
	if err := ping(); err == nil {
		t.Fatal("a killed process answered")
	}
}
