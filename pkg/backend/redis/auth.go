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

// Lifetimes of a connection without [Config.AuthMaxAge].
const (
	lifetime   = 10 * time.Minute
	lifeJitter = 2 * time.Minute
)

// minAuthAge is the minimum of [Config.AuthMaxAge].
const minAuthAge = time.Second

// renewAgain is the delay after a failed renewal of a connection.
const renewAgain = time.Second

// life returns the minimum lifetime of a new connection, and the maximum jitter added to it.
func (c *Config) life() (least, jitter time.Duration) {
	if c.AuthMaxAge == 0 {
		return lifetime - lifeJitter, 2 * lifeJitter
	}
	return c.AuthMaxAge * 7 / 10, c.AuthMaxAge / 5
}

// age returns the lifetime of a new connection.
func (c *Config) age() time.Duration {
	least, jitter := c.life()
	return least + rand.N(jitter)
}

// credentials returns the credentials of a new connection: from a file if there is one, otherwise from the setting, otherwise from the
// URL. Without a colon, they are a password.
func credentials(file, set, fromURL string) (user, password string, err error) {
	text := cmp.Or(set, fromURL)
	if file != "" {
		read, err := smallfile.Read(file, smallfile.MaxSize)
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

// credentials returns the credentials of a new connection to a server.
func (p *pool) credentials(context.Context) (user, password string, err error) {
	return credentials(p.config.AuthFile, p.config.Auth, p.target.auth)
}

// renew replaces w's connection at the end of its lifetime: it opens a new one, and then closes the old one. In the meantime, the other
// writers serve; one writer renews at a time. If no new connection can be opened, for example because a token has expired, w keeps the
// old one while it works, and tries again later.
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
