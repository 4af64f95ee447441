// Package remote has the parts that all backends behind a network need: connections that notice when the other side is gone
// (dial.go), the health of each server, by failed calls and by silence (breaker.go), how long a server takes (pace.go), how long
// callers wait (budget.go) and how much earlier they leave (lag.go), the errors of operations (error.go), and the events that an
// observer gets. A backend adds its own classes of errors and kinds of events.
//
// This package is part of the core.
//
// Experimental: this package may change with every version.
package remote

import "time"

// Observer is notified of what a backend does. Its functions are called concurrently and must not block. Each may be nil.
type Observer struct {
	// Batch is called after each round trip.
	Batch func(Batch)
	// Breaker is called with the state of a server's breaker: closed, when the server becomes known; closed, half-open or
	// open, when that changes, where a server without a connection is open; and gone, when it is no longer used.
	Breaker func(node, state string)
	// Connections is called with the number of connections that are up, when one comes up or goes. It must not call the
	// backend.
	Connections func(active int)
	// Event is called for what an operator should know about. It may be called repeatedly while the condition lasts.
	Event func(Event)
}

// Filled returns o with functions that do nothing in place of those that are nil.
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

// Batch is what one round trip did, or one use of a connection.
type Batch struct {
	Node     string        // the server, as the store names it
	Ops      int           // operations answered by it
	Merged   int           // takes and checks that were merged into others: Ops less those that were sent
	Failed   int           // how many of Ops got an error
	Duration time.Duration // from when the batch was formed to when it was answered
	Err      *Error        // the worst error of any of Ops; nil if there was none
}

// EventKind is what an [Event] is about.
type EventKind string

// The kinds of events that every store has. Stores add their own.
const (
	EventConnectFailed EventKind = "connect_failed" // no connection could be opened; Err says why
	EventConnected     EventKind = "connected"      // a connection is up
)

// Event is something an operator should know about.
type Event struct {
	Kind   EventKind
	Node   string // the server, or the name under which servers were looked up
	Detail string // what the kind says it is, else empty
	Err    error  // why something failed, else nil
}
