// Package xds receives rules from a control plane.
//
// It subscribes to all resources of [TypeURL] on one stream of the aggregated discovery service, state of the world or
// delta. Only contents matter: a set that differs from the last one is compiled as a whole, and otherwise only
// acknowledged, whatever its version. So a control plane may restart, restart its version numbers, and repeat itself.
// An invalid set is answered with the reason, and the last good one stays, as it does without a control plane.
//
// A new stream requests everything, without version or nonce of the previous one. If updates come faster than they
// compile, answers are delayed, and only the newest set is compiled.
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

// TypeURL is the type of resources with rules.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// DefaultMaxMessage is the default maximum size of a message in bytes.
const DefaultMaxMessage = 64 << 20

const (
	pace        = 100 * time.Millisecond // minimum interval between compiling two sets
	repeatAfter = 500 * time.Millisecond // delay of answering the same invalid set again; its correction is not sent before the answer
	chance      = time.Second            // time to wait for a first response
	silence     = 30 * time.Second       // time without a response before a warning is logged
)

// Config configures a Client. The zero value connects to a control plane on this machine without TLS.
type Config struct {
	Server           string            // gRPC target: host:port, possibly prefixed by dns: or unix:; empty means localhost:18000
	Delta            bool              // use the delta protocol, which sends only changes
	NodeID           string            // identifies this server to the control plane; empty means default
	NodeMetadata     map[string]string // further data about this server
	Headers          map[string]string // sent as gRPC metadata; secret
	TLS              TLS
	MaxMessage       int           // bytes; 0 means [DefaultMaxMessage]
	Keepalive        time.Duration // time without traffic before a ping; 0 means a little over 5 minutes
	KeepaliveTimeout time.Duration // timeout of a ping; 0 means 20 s
	Backoff          Backoff
	KeepOnEmpty      bool  // keep the rules if the control plane sends none
	Hooks            Hooks // notified of events
}

// Hooks are called for events, never concurrently. All are required.
type Hooks struct {
	Event   func(Event)
	Current func(bool)   // whether the rules are known to be the control plane's
	Waiting func(string) // the reason for having no response on this stream, or no stream
}

// Event is a kind of event to count.
type Event string

// The events.
const (
	EventConnected    Event = "connected"    // a first response arrived on a new stream
	EventDisconnected Event = "disconnected" // a stream ended or could not be opened
	EventTaken        Event = "taken"        // a set was accepted
	EventInvalid      Event = "invalid"      // a response was invalid
	EventUnchanged    Event = "unchanged"    // a response had the same contents as the last one
	EventCoalesced    Event = "coalesced"    // a later response replaced this one
	EventEmpty        Event = "empty"        // a set was empty
)

// Events returns all events.
func Events() []Event {
	return []Event{EventConnected, EventDisconnected, EventTaken, EventInvalid, EventUnchanged, EventCoalesced, EventEmpty}
}

// Client follows a control plane. It is a task.
type Client struct {
	configwatch.Reloads // each opens a new stream, and compiles its first set

	log       *slog.Logger
	config    Config
	rules     *configwatch.Watch
	first     chan struct{}
	firstOnce sync.Once
	connected atomic.Bool

	// Used only by Run.
	held        held
	last        outcome
	dirty       bool           // held may differ from last
	typeProblem string         // problem of the last response if it had another type
	notBefore   time.Time      // earliest time to compile the next set
	repeatAt    time.Time      // earliest time to answer an invalid set that repeats
	waiting     []chan<- error // callers that wait for a reload, until the decision on the first set of a new stream
}

// New returns a Client that updates rules, which must accept empty updates; see configwatch.Config.Empty.
func New(log *slog.Logger, c Config, rules *configwatch.Watch) *Client {
	c.Server = cmp.Or(c.Server, "localhost:18000")
	c.NodeID = cmp.Or(c.NodeID, "default")
	c.MaxMessage = cmp.Or(c.MaxMessage, DefaultMaxMessage)
	c.Keepalive = cmp.Or(c.Keepalive, keepaliveTime)
	c.KeepaliveTimeout = cmp.Or(c.KeepaliveTimeout, keepaliveTimeout)
	return &Client{Reloads: configwatch.NewReloads(), log: log, config: c, rules: rules, first: make(chan struct{})}
}

// String returns the name of the task.
func (c *Client) String() string { return "rules from " + c.config.Server }

// First returns a channel that is closed when a first response has been processed, the first stream has failed, or
// nothing has arrived for a second.
func (c *Client) First() <-chan struct{} { return c.first }

// Connected reports whether a response has arrived on the current stream.
func (c *Client) Connected() bool { return c.connected.Load() }

// ReloadNow requests everything from the control plane, like Reload. It returns when the rules have been accepted or found
// invalid, or with the reason why none arrived.
func (c *Client) ReloadNow(ctx context.Context) error {
	err := c.Reloads.ReloadNow(ctx)
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		return fmt.Errorf("the control plane at %s has not answered in time: %w", c.config.Server, err)
	}
	return err
}

// Try returns an error: the control plane sends rules only for a real reload.
func (c *Client) Try() (*configwatch.Outcome, error) {
	return nil, fmt.Errorf("rules come from the control plane at %s, which sends them only for a real reload", c.config.Server)
}

// reloaded reports the outcome of a reload to waiting callers.
func (c *Client) reloaded(err error) {
	for _, done := range c.waiting {
		if done != nil {
			done <- err // the channel has a buffer
		}
	}
	c.waiting = nil
}

// errReload ends a stream for a reload.
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
		case done := <-c.Reloads:
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

// tried closes First.
func (c *Client) tried() { c.firstOnce.Do(func() { close(c.first) }) }
