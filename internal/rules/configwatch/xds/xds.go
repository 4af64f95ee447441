// Package xds gets rules from a control plane.
//
// The control plane is asked for all resources of [TypeURL], over one stream of its aggregated discovery service,
// either state of the world or delta. Only contents matter: the whole set is compiled again if it differs from the last
// one, and otherwise just acknowledged, whatever its version is called. So a control plane may restart, count its
// versions from 1 again, and repeat itself. An invalid set is answered with the reason, and the last good one stays in
// use, as it does while there is no control plane.
//
// A new stream asks for everything, without version or nonce of the previous one. If updates come faster than they can
// be compiled, answers are held back and only the newest set is compiled.
//
// This package is optional: the core works without it.
package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
)

// TypeURL is the type of the resources that hold rules.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// DefaultMaxMessage is the default of the largest message that is accepted, in bytes.
const DefaultMaxMessage = 64 << 20

const (
	pace        = 100 * time.Millisecond // the least time between compiling two sets
	repeatAfter = 500 * time.Millisecond // before the same invalid set is answered again; its correction is not sent before that
	chance      = time.Second            // how long a first response is waited for
	silence     = 30 * time.Second       // after which it is logged that a control plane has sent nothing
)

// Config says which control plane is asked, and how. The zero value means one on this machine, without TLS.
type Config struct {
	Server           string            // gRPC target: host:port, possibly prefixed by dns: or unix:; empty means localhost:18000
	Delta            bool              // use the delta protocol, in which only changes are sent
	NodeID           string            // by which the control plane knows this server; empty means default
	NodeMetadata     map[string]string // further data about this server for the control plane
	Headers          map[string]string // sent as gRPC metadata; secret
	TLS              TLS
	MaxMessage       int           // bytes; 0 means [DefaultMaxMessage]
	Keepalive        time.Duration // how long a connection may be silent before it is pinged; 0 means a little over 5 minutes
	KeepaliveTimeout time.Duration // how long the answer to a ping may take; 0 means 20 s
	Backoff          Backoff
	KeepOnEmpty      bool  // existing rules are kept if the control plane has none
	Hooks            Hooks // called when something happens
}

// Hooks are called when something happens, one call at a time. Each is required.
type Hooks struct {
	Event   func(Event)
	Current func(bool)   // whether the rules are known to be those of the control plane
	Waiting func(string) // why no response has come on this stream, or why there is no stream
}

// Event is a kind of event to count.
type Event string

// The events.
const (
	EventConnected    Event = "connected"    // a stream was opened and a first response came
	EventDisconnected Event = "disconnected" // a stream ended, or could not be opened
	EventTaken        Event = "taken"        // a set was accepted
	EventInvalid      Event = "invalid"      // a response was invalid
	EventUnchanged    Event = "unchanged"    // a response had the same contents as the last
	EventCoalesced    Event = "coalesced"    // a response was overtaken by a later one
	EventEmpty        Event = "empty"        // a set was empty
)

// Events returns all events.
func Events() []Event {
	return []Event{EventConnected, EventDisconnected, EventTaken, EventInvalid, EventUnchanged, EventCoalesced, EventEmpty}
}

// Client follows a control plane. It is a task.
type Client struct {
	log       *slog.Logger
	config    Config
	rules     *configwatch.Watch
	reload    chan chan<- error // of a caller that waits for a reload, or nil
	first     chan struct{}
	firstOnce sync.Once
	connected atomic.Bool

	// Used only by Run.
	held      held
	last      outcome
	dirty     bool           // held may differ from the set whose outcome is last
	strange   string         // why the last response was invalid, if it was of another type
	notBefore time.Time      // when the next set may be compiled
	repeatAt  time.Time      // when what was invalid last may be invalid again
	waiting   []chan<- error // callers that wait for a reload, until the first set of a new stream is decided on
}

// New returns a Client that updates rules. These must accept an update without sources (see configwatch.Config.Empty).
func New(log *slog.Logger, c Config, rules *configwatch.Watch) *Client {
	c.Server = cmp.Or(c.Server, "localhost:18000")
	c.NodeID = cmp.Or(c.NodeID, "default")
	c.MaxMessage = cmp.Or(c.MaxMessage, DefaultMaxMessage)
	c.Keepalive = cmp.Or(c.Keepalive, keepaliveTime)
	c.KeepaliveTimeout = cmp.Or(c.KeepaliveTimeout, keepaliveTimeout)
	return &Client{log: log, config: c, rules: rules, reload: make(chan chan<- error, 1), first: make(chan struct{})}
}

// String names the task.
func (c *Client) String() string { return "rules from " + c.config.Server }

// First is closed once a first response has been processed, the first stream has failed, or nothing has come for a
// second.
func (c *Client) First() <-chan struct{} { return c.first }

// Connected reports whether there is a stream on which a response has come.
func (c *Client) Connected() bool { return c.connected.Load() }

// Reload has a new stream opened at once, and its first set compiled even if nothing has changed. It does not wait for
// that.
func (c *Client) Reload() {
	select {
	case c.reload <- nil:
	default: // one is pending
	}
}

// ReloadNow asks the control plane for everything, as Reload does, and returns once it is decided whether that becomes the
// rules, or with why nothing came.
func (c *Client) ReloadNow(ctx context.Context) error {
	done, reload := make(chan error, 1), c.reload
	for {
		select {
		case reload <- done:
			reload = nil
		case err := <-done:
			return err
		case <-ctx.Done():
			return fmt.Errorf("the control plane at %s has not answered in time: %w", c.config.Server, ctx.Err())
		}
	}
}

// Try returns an error: what a control plane would send is not known before it does.
func (c *Client) Try() (*configwatch.Outcome, error) {
	return nil, fmt.Errorf("rules come from the control plane at %s, which sends them only for a real reload", c.config.Server)
}

// reloaded reports the outcome of a reload to all that wait for it.
func (c *Client) reloaded(err error) {
	for _, done := range c.waiting {
		if done != nil {
			done <- err // has room
		}
	}
	c.waiting = nil
}

// errReload ends a stream because a reload was asked for.
var errReload = errors.New("a reload was requested")

// Run follows the control plane until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	defer time.AfterFunc(chance, c.tried).Stop()
	for attempt := 0; ; attempt++ {
		err := c.stream(ctx)
		worked := c.connected.Swap(false)
		if ctx.Err() != nil {
			return nil
		}
		if worked {
			attempt = 0
		}
		wait := c.config.Backoff.wait(attempt, c.rules.Rules() != nil)
		if errors.Is(err, errReload) {
			wait, c.last = 0, outcome{}
		}
		c.lost(err, wait)
		select {
		case <-ctx.Done():
			return nil
		case done := <-c.reload:
			c.last, c.waiting = outcome{}, append(c.waiting, done)
		case <-time.After(wait):
		}
	}
}

// lost reports that there is no stream.
func (c *Client) lost(err error, wait time.Duration) {
	c.config.Hooks.Event(EventDisconnected)
	c.config.Hooks.Current(false)
	text := words(err)
	if errors.Is(err, errReload) {
		c.log.Info("requesting all rules from the control plane", "server", c.config.Server)
	} else {
		c.log.Warn("no control plane: the rules do not change", "server", c.config.Server, "error", text, "next_try", wait)
		c.config.Hooks.Waiting("no control plane at " + c.config.Server + ": " + text)
		c.reloaded(errors.New("no control plane at " + c.config.Server + ": " + text))
	}
	c.tried()
}

// tried closes First: the control plane has had its chance.
func (c *Client) tried() { c.firstOnce.Do(func() { close(c.first) }) }
