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
package xds

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/configwatch"
)

// TypeURL is the type of the resources that hold rules.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// DefaultMaxMessage is the largest message that is taken unless told otherwise, in bytes.
const DefaultMaxMessage = 64 << 20

const (
	pace    = 100 * time.Millisecond // the least time between two sets that are compiled
	maxHold = 3 * time.Second        // how long the same refused set is not answered again, at most
	chance  = time.Second            // how long those who wait for a first response wait for one
	silence = 30 * time.Second       // after which a control plane that has sent nothing is worth a word
)

// Config says which control plane is asked, and how. The zero value asks one on this machine, in plain text.
type Config struct {
	Server           string            // target of gRPC: host:port, or with dns:, unix: before it; empty is localhost:18000
	Delta            bool              // only changes are sent, not always everything
	NodeID           string            // what the control plane knows this server by; empty is default
	NodeMetadata     map[string]string // more of the same
	Headers          map[string]string // sent along as metadata of gRPC; secret
	TLS              TLS
	MaxMessage       int           // bytes; 0 is [DefaultMaxMessage]
	Keepalive        time.Duration // how long nothing may come before the connection is tried; 0 is a little over 5 minutes
	KeepaliveTimeout time.Duration // and how long the answer may take; 0 is 20 s
	Backoff          Backoff
	KeepOnEmpty      bool  // rules that are there stay where the control plane has none
	Hooks            Hooks // who wants to know
}

// Hooks are told what happens, one call at a time. A nil hook is not called.
type Hooks struct {
	Event   func(Event)
	Current func(bool)   // whether the rules are known to be what the control plane has
	Waiting func(string) // why no response has come on this stream, or why there is no stream
}

// Event is something that is counted.
type Event string

// The events.
const (
	EventConnected    Event = "connected"    // a stream was opened and a first response came
	EventDisconnected Event = "disconnected" // a stream ended, or could not be opened
	EventTaken        Event = "taken"        // a set was taken
	EventRefused      Event = "refused"      // a response was refused
	EventUnchanged    Event = "unchanged"    // a response brought what was there already
	EventCoalesced    Event = "coalesced"    // a response was overtaken by a later one
	EventEmpty        Event = "empty"        // a set was empty
)

// Client follows a control plane. It is a task.
type Client struct {
	log       *slog.Logger
	config    Config
	rules     *configwatch.Watch
	force     chan struct{}
	first     chan struct{}
	firstOnce sync.Once
	connected atomic.Bool

	// Of Run alone.
	held      held
	last      outcome
	dirty     bool          // held may differ from what last is about
	strange   string        // why the last response, of another type, was refused
	hold      time.Duration // how long the next answer waits because the last ones were the same refusal
	notBefore time.Time     // when the next set may be compiled
}

// New makes a Client that feeds rules. These have to take an update without sources (see configwatch.Config.Empty).
func New(log *slog.Logger, c Config, rules *configwatch.Watch) *Client {
	if c.Server == "" {
		c.Server = "localhost:18000"
	}
	if c.NodeID == "" {
		c.NodeID = "default"
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = DefaultMaxMessage
	}
	if c.Keepalive == 0 {
		c.Keepalive = keepaliveTime
	}
	if c.KeepaliveTimeout == 0 {
		c.KeepaliveTimeout = keepaliveTimeout
	}
	if c.Hooks.Event == nil {
		c.Hooks.Event = func(Event) {}
	}
	if c.Hooks.Current == nil {
		c.Hooks.Current = func(bool) {}
	}
	if c.Hooks.Waiting == nil {
		c.Hooks.Waiting = func(string) {}
	}
	return &Client{log: log, config: c, rules: rules, force: make(chan struct{}, 1), first: make(chan struct{})}
}

// String names the task.
func (c *Client) String() string { return "rules from " + c.config.Server }

// First is closed once a first response has been decided, a first stream could not be opened, or nothing has come for a
// second.
func (c *Client) First() <-chan struct{} { return c.first }

// Connected reports whether there is a stream on which something has come.
func (c *Client) Connected() bool { return c.connected.Load() }

// Reload opens a new stream at once, and hands over what comes on it even where nothing changed. It does not wait.
func (c *Client) Reload() {
	select {
	case c.force <- struct{}{}:
	default: // one is about to happen
	}
}

// errReload ends a stream because somebody asked for a new one.
var errReload = errors.New("a reload was asked for")

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
		wait := c.config.Backoff.wait(attempt)
		if errors.Is(err, errReload) {
			wait, c.last = 0, outcome{}
		}
		c.lost(err, wait)
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil
		case <-c.force:
			again.Stop()
			c.last = outcome{}
		case <-again.C:
		}
	}
}

// lost tells everybody that there is no stream.
func (c *Client) lost(err error, wait time.Duration) {
	c.config.Hooks.Event(EventDisconnected)
	c.config.Hooks.Current(false)
	text := status.Convert(err).Message()
	if errors.Is(err, errReload) {
		c.log.Info("asking the control plane for everything", "server", c.config.Server)
	} else {
		c.log.Warn("no control plane: the rules stay as they are", "server", c.config.Server, "error", text, "next_try", wait)
		c.config.Hooks.Waiting("no control plane at " + c.config.Server + ": " + text)
	}
	c.tried()
}

// tried notes that the control plane has had its chance.
func (c *Client) tried() { c.firstOnce.Do(func() { close(c.first) }) }
