// Package storehealth determines whether a remote backend is usable, and the effects on health and readiness. An [Observer]
// counts and logs the backend's events, and passes its state to a [Store].
//
// A Store is a state machine. Its inputs are the number of connections, connection errors, and the state of each node's breaker.
// Its outputs are the backend's component of health, and a reason why the server is not ready. There are three states:
//
//   - unusable: there is no connection;
//   - degraded: there is a connection, and some breakers are not closed;
//   - usable: there is a connection, and all breakers are closed.
//
// Health fails until the first connection. After that, it fails only if [Policy] requires a connection.
//
// This package is part of the process.
package storehealth

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Policy configures how an unusable backend affects health and readiness.
type Policy struct {
	Follows  bool // health fails whenever there is no connection, not only before the first one
	Optional bool // neither fails, because the server can answer without the backend
}

// Store is the state of a backend. It is safe for concurrent use.
type Store struct {
	policy    Policy
	component *health.Part
	tried     chan struct{} // closed after the first connection or connection error
	once      sync.Once     // closes tried

	mu          sync.Mutex
	connections int
	worked      bool              // it has been usable
	failure     string            // reason for the lack of a connection; the last reason with one
	nodes       map[string]string // states of the breakers, as named by pkg/backend/remote
}

const noConnectionYet = "not connected yet"

// New returns a Store without a connection, and adds its component to h.
func New(name string, h *health.Tracker, p Policy) *Store {
	s := &Store{
		policy:    p,
		component: h.Add(name, false, noConnectionYet),
		tried:     make(chan struct{}),
		failure:   noConnectionYet,
		nodes:     make(map[string]string),
	}
	s.change(func() {})
	return s
}

// Local returns the Store of a backend in this process, which is always usable and has no connections.
func Local() *Store {
	s := &Store{tried: make(chan struct{})}
	close(s.tried)
	return s
}

// change runs do and updates health.
func (s *Store) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	usable, why := s.connections > 0, s.failure
	if usable {
		s.worked, why = true, s.silence()
	}
	switch {
	case why == "":
		s.component.Set(true, "")
	case s.policy.Optional || s.worked && (usable || !s.policy.Follows):
		s.component.Degrade(why)
	default:
		s.component.Set(false, why)
	}
}

// Connected records the number of connections.
func (s *Store) Connected(active int) {
	s.change(func() {
		if s.connections = active; active <= 0 && s.worked {
			s.failure = "not connected"
		}
	})
	if active > 0 { // after the change, because a waiter reads the state immediately
		s.once.Do(func() { close(s.tried) })
	}
}

// ConnectFailed records a connection error.
func (s *Store) ConnectFailed(err error) {
	defer s.once.Do(func() { close(s.tried) }) // after the change, as in Connected
	s.change(func() {
		if s.connections == 0 {
			s.failure = "not connected: " + err.Error()
		}
	})
}

// Breaker records the state of a node's breaker. A node's first state is remote.Closed.
func (s *Store) Breaker(node, state string) {
	s.change(func() { s.nodes[node] = state })
}

// Breakers returns the states of the breakers of all nodes in use.
func (s *Store) Breakers() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.nodes)
	maps.DeleteFunc(all, func(_, state string) bool { return state == remote.Gone })
	return all
}

// Tried returns a channel that is closed after the first connection or connection error.
func (s *Store) Tried() <-chan struct{} { return s.tried }

// Connections returns the number of connections.
func (s *Store) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

// Disconnected returns the reason for having no connection, or "" with a connection.
func (s *Store) Disconnected() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disconnected()
}

// NotReady returns the reason why requests that need the backend cannot be decided, or "". It is always "" with
// Policy.Optional.
func (s *Store) NotReady() string {
	if s.policy.Optional {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.disconnected(); why != "" {
		return why
	}
	for _, b := range s.nodes {
		if b == remote.Closed {
			return ""
		}
	}
	return s.silence()
}

// disconnected is [Store.Disconnected]. The caller holds s.mu.
func (s *Store) disconnected() string {
	if s.connections > 0 {
		return ""
	}
	return s.failure
}

// silence describes the nodes whose breakers are open or half-open, or returns "". The caller holds s.mu.
func (s *Store) silence() string {
	var silent []string
	for node, b := range s.nodes {
		if b == remote.Open || b == remote.HalfOpen {
			silent = append(silent, node)
		}
	}
	if silent == nil {
		return ""
	}
	slices.Sort(silent)
	return "no answer in time from " + strings.Join(silent, ", ")
}
