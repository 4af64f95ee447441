// Package remote contains the parts common to backends behind a network: connections that detect a closed peer (dial.go), the health of
// each server by failures and silence (breaker.go), estimates of answer times (pace.go), budgets of callers (budget.go) and the time they
// reserve for scheduling delays (lag.go), errors of operations (error.go), and events for an observer. A backend adds its own classes of
// errors and kinds of events.
//
// This package is part of the core.
//
// Experimental: this package may change with every version.
package remote

import "time"

// Observer receives notifications about a backend. Its functions are called concurrently and must not block. Each may be nil.
type Observer struct {
	// Batch is called after each round trip.
	Batch func(Batch)
	// Breaker is called with each change of the state of a server's breaker. The first state of a new server is closed; the last one is
	// gone, when it is no longer used. In between, the state is closed, half-open or open; a server without a connection is open.
	Breaker func(node, state string)
	// Connections is called with the number of open connections whenever it changes. It must not call the backend.
	Connections func(active int)
	// Event is called for events of interest to an operator. It may be called repeatedly while a condition lasts.
	Event func(Event)
}

// Filled returns o with functions that do nothing in place of nil.
func (o Observer) Filled() Observer {
	if o.Batch == nil {
		o.Batch = func(Batch) {}
	}
	if o.Breaker == nil {
		o.Breaker = func(string, string) {}
	}
	if o.Connections == nil {
		o.Connections = func(int) {}
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	return o
}

// Batch describes one round trip or one use of a connection.
type Batch struct {
	Node     string        // the store's name for the server
	Ops      int           // operations answered by it
	Merged   int           // takes and checks that were merged into others: Ops less the number sent
	Failed   int           // number of Ops with an error
	Duration time.Duration // from forming the batch to its answer
	Err      *Error        // worst error of Ops; nil if there was none
}

// EventKind is the kind of an [Event].
type EventKind string

// Kinds of events common to all stores. A store adds its own.
const (
	EventConnectFailed EventKind = "connect_failed" // no connection could be opened; Err is the reason
	EventConnected     EventKind = "connected"      // a connection is up
)

// Event is an event of interest to an operator.
type Event struct {
	Kind   EventKind
	Node   string // the server, or the name under which servers were resolved
	Detail string // depends on the kind; may be empty
	Err    error  // cause of a failure, or nil
}
