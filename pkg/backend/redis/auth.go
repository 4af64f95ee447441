package redis

import (
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

// splitAuth splits user:password at the first colon. Without a colon it is all password.
func splitAuth(auth string) (user, password string) {
	if user, password, ok := strings.Cut(auth, ":"); ok {
		return user, password
	}
	return "", auth
}

// readAuth reads user:password, or a password alone, from a file.
func readAuth(file string) (user, password string, err error) {
	text, err := smallfile.Read(file, smallfile.Most)
	if err != nil {
		return "", "", fmt.Errorf("reading the password: %w", err)
	}
	user, password = splitAuth(strings.TrimRight(string(text), "\r\n"))
	return user, password, nil
}

// credentials returns what a new connection authenticates with.
func (c *Config) credentials(fromURL string) (user, password string, err error) {
	switch {
	case c.AuthFile != "":
		return readAuth(c.AuthFile)
	case c.Auth != "":
		user, password = splitAuth(c.Auth)
	default:
		user, password = splitAuth(fromURL)
	}
	return user, password, nil
}

// sentinelCredentials is credentials for a connection to a sentinel.
func (c *Config) sentinelCredentials(fromURL string) (user, password string, err error) {
	own := Config{Auth: c.SentinelAuth, AuthFile: c.SentinelAuthFile}
	return own.credentials(fromURL)
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
