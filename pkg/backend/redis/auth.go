package redis

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// How long a connection is used, unless [Config.AuthMaxAge] says so.
const (
	lifetime   = 10 * time.Minute
	lifeJitter = 2 * time.Minute
)

// minAuthAge is the least of [Config.AuthMaxAge].
const minAuthAge = time.Second

// renewAgain is when a connection that could not be renewed is tried again.
const renewAgain = time.Second

// life returns how long a new connection is used: no less than the first, and up to the second more.
func (c *Config) life() (least, jitter time.Duration) {
	if c.AuthMaxAge == 0 {
		return lifetime - lifeJitter, 2 * lifeJitter
	}
	return c.AuthMaxAge * 7 / 10, c.AuthMaxAge / 5
}

// age returns how long a new connection is used.
func (c *Config) age() time.Duration {
	least, jitter := c.life()
	return least + rand.N(jitter)
}

// credentials returns what a new connection authenticates with: from a file if there is one, or else what is set, or is in the URL. Without
// a colon it is a password.
func credentials(file, set, fromURL string) (user, password string, err error) {
	text := cmp.Or(set, fromURL)
	if file != "" {
		read, err := smallfile.Read(file, smallfile.Most)
		if err != nil {
			return "", "", fmt.Errorf("reading the password: %w", err)
		}
		text = strings.TrimRight(string(read), "\r\n")
	}
	if user, password, ok := strings.Cut(text, ":"); ok {
		return user, password, nil
	}
	return "", text, nil
}

// credentials returns what a new connection to a server authenticates with.
func (p *pool) credentials(context.Context) (user, password string, err error) {
	return credentials(p.config.AuthFile, p.config.Auth, p.target.auth)
}

// renew opens a new connection in place of w's, whose time has come, and closes the old one after that. Meanwhile the other
// writer serves; one renews at a time. If there is no new one to be had, such as with a token that has ended, the old one
// goes on to be used for as long as it works, and is renewed later.
func (w *writer) renew(ctx context.Context) {
	n, old := w.node, w.link
	if !n.renewing.CompareAndSwap(false, true) {
		return
	}
	defer n.renewing.Store(false)
	w.link = nil
	if err := w.open(ctx); err != nil {
		w.link, old.ends = old, time.Now().Add(renewAgain)
		if ctx.Err() == nil {
			n.pool.observer.Event(remote.Event{Kind: remote.EventConnectFailed, Node: n.addr, Err: n.pool.advised(err)})
		}
		return
	}
	old.close()
	n.links.Add(-1)
	n.pool.connected(-1)
}
