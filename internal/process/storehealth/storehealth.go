// Package storehealth derives health and readiness from the state of a remote backend.
//
// It is a state machine. Its inputs are the number of connections, errors of connecting, and the breaker state of each node. Its
// outputs are the backend's health component, and the reason why the server is not ready. It has three states:
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
	"slices"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
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
	worked      bool   // there has been a connection
	failure     string // reason for having no connection, or the last one
	nodes       map[string]health.Breaker
}

const noConnectionYet = "not connected yet"

// New returns a Store without a connection, and adds its component to h.
func New(name string, h *health.Tracker, p Policy) *Store {
	s := &Store{
		policy:    p,
		component: h.Add(name, false, noConnectionYet),
		tried:     make(chan struct{}),
		failure:   noConnectionYet,
		nodes:     make(map[string]health.Breaker),
	}
	s.change(func() {})
	return s
}

// change applies a change, and updates health.
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

// ConnectFailed records a connection error; nil keeps the last reason.
func (s *Store) ConnectFailed(err error) {
	defer s.once.Do(func() { close(s.tried) }) // after the change, as in Connected
	if err == nil {
		return
	}
	s.change(func() {
		if s.connections == 0 {
			s.failure = "not connected: " + err.Error()
		}
	})
}

// Node adds a node with a closed breaker.
func (s *Store) Node(node string) {
	s.change(func() {
		if _, known := s.nodes[node]; !known {
			s.nodes[node] = health.Closed
		}
	})
}

// Breaker records the breaker state of a node.
func (s *Store) Breaker(node string, state health.Breaker) {
	s.change(func() { s.nodes[node] = state })
}

// Tried returns a channel that is closed after the first connection or connection error.
func (s *Store) Tried() <-chan struct{} { return s.tried }

// Connections returns the number of connections.
func (s *Store) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

// Away returns the reason for having no connection, or "" with a connection.
func (s *Store) Away() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away()
}

// NotReady returns the reason why requests that need the backend cannot be decided, or "". It is always "" with
// Policy.Optional.
func (s *Store) NotReady() string {
	if s.policy.Optional {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.away(); why != "" {
		return why
	}
	for _, b := range s.nodes {
		if b == health.Closed {
			return ""
		}
	}
	return s.silence()
}

// away is [Store.Away]. The caller holds s.mu.
func (s *Store) away() string {
	if s.connections > 0 {
		return ""
	}
	return s.failure
}

// silence describes the nodes whose breakers are open or half-open, or returns "". The caller holds s.mu.
func (s *Store) silence() string {
	var silent []string
	for node, b := range s.nodes {
		if b == health.Open || b == health.HalfOpen {
			silent = append(silent, node)
		}
	}
	if silent == nil {
		return ""
	}
	slices.Sort(silent)
	return "no answer in time from " + strings.Join(silent, ", ")
}
