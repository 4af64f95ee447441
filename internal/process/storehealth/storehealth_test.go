package storehealth_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/storehealth"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// TestStore runs scripts of events: each line is an event and the resulting state.
func TestStore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		policy storehealth.Policy
		script string // event => health; "ready" or the reason
	}{
		{"by default", storehealth.Policy{}, `
			begin              => unhealthy; not connected yet
			failed no route    => unhealthy; not connected: no route
			connected 2        => ok; ready
			connected 1        => ok; ready
			failed no route    => ok; ready
			connected 0        => degraded; not connected
			failed no route    => degraded; not connected: no route
			connected 1        => ok; ready
		`},
		{"following connections", storehealth.Policy{Follows: true}, `
			begin              => unhealthy; not connected yet
			connected 1        => ok; ready
			open a:1           => degraded; no answer in time from a:1
			connected 0        => unhealthy; not connected
			closed a:1         => unhealthy; not connected
			connected 1        => ok; ready
		`},
		{"optional", storehealth.Policy{Follows: true, Optional: true}, `
			begin              => degraded; ready
			failed no route    => degraded; ready
			connected 1        => ok; ready
			connected 0        => degraded; ready
		`},
		{"breakers", storehealth.Policy{}, `
			connected 2        => ok; ready
			open a:1           => degraded; no answer in time from a:1
			closed b:1         => degraded; ready
			open b:1           => degraded; no answer in time from a:1, b:1
			gone a:1           => degraded; no answer in time from b:1
			closed b:1         => ok; ready
			open a:1           => degraded; ready
			gone a:1           => ok; ready
			open b:1           => degraded; no answer in time from b:1
			gone b:1           => ok; ready
		`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := health.NewTracker()
			s := storehealth.New("store", h, tt.policy)
			for line := range strings.Lines(strings.TrimSpace(tt.script)) {
				event, want, _ := strings.Cut(strings.TrimSpace(line), "=>")
				play(t, s, strings.TrimSpace(event))
				c := h.Components()[0]
				state := map[bool]string{true: "ok"}[c.OK]
				if c.Degraded {
					state = "degraded"
				} else if !h.OK() {
					state = "unhealthy"
				}
				ready := s.NotReady()
				if ready == "" {
					ready = "ready"
				}
				if got := state + "; " + ready; got != strings.TrimSpace(want) {
					t.Errorf("%s: %s; want%s", event, got, want)
				}
			}
		})
	}
}

func play(t *testing.T, s *storehealth.Store, event string) {
	t.Helper()
	verb, rest, _ := strings.Cut(event, " ")
	node, _, _ := strings.Cut(rest, " ")
	switch verb {
	case "begin":
	case "connected":
		s.Connected(int(rest[0] - '0'))
	case "failed":
		s.ConnectFailed(errors.New(rest))
	case remote.Open, remote.Closed, remote.Gone:
		s.Breaker(node, verb)
	default:
		t.Fatalf("unknown event %q", event)
	}
}

// TestTried: the first connection or failure ends the wait, and later ones change nothing.
func TestTried(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(*storehealth.Store){
		"a connection": func(s *storehealth.Store) { s.Connected(1) },
		"a failure":    func(s *storehealth.Store) { s.ConnectFailed(errors.New("no route")) },
	} {
		s := storehealth.New("store", health.NewTracker(), storehealth.Policy{})
		s.Connected(0)
		select {
		case <-s.Tried():
			t.Errorf("%s: tried before the first attempt", name)
		default:
		}
		first(s)
		s.Connected(1)
		select {
		case <-s.Tried():
		default:
			t.Errorf("%s: not tried", name)
		}
		if why := s.Disconnected(); why != "" {
			t.Errorf("%s: disconnected with a connection: %s", name, why)
		}
	}
}

// TestTriedTellsTheResult: after waiting for the first attempt, Away returns its result.
func TestTriedTellsTheResult(t *testing.T) {
	t.Parallel()
	for range 50_000 {
		s := storehealth.New("store", health.NewTracker(), storehealth.Policy{})
		heard := make(chan string)
		go func() {
			<-s.Tried()
			heard <- s.Disconnected()
		}()
		s.Connected(1)
		if away := <-heard; away != "" {
			t.Fatalf("connected, but disconnected because of %s", away)
		}
	}
}

// TestLocal: a backend in this process is always usable, without connections.
func TestLocal(t *testing.T) {
	t.Parallel()
	s := storehealth.Local()
	<-s.Tried()
	if why := s.NotReady() + s.Disconnected(); why != "" || s.Connections() != 0 || len(s.Breakers()) != 0 {
		t.Errorf("not ready or disconnected (%q), with %d connections to %v", why, s.Connections(), s.Breakers())
	}
}
