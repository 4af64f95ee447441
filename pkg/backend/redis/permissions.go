package redis

import (
	"cmp"
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/internal/probe"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// probeEach is how often a connection whose user lacks something is probed again.
const probeEach = time.Second

// grant returns what a user of p has to be allowed.
func (p *pool) grant() probe.Grant {
	return probe.Grant{
		Prefix: p.config.KeyPrefix, Scripts: p.config.KeyFormat == OurKeys, Select: p.target.db != 0, Cluster: p.config.Type == Cluster,
	}
}

// advised returns e, and if the server does not let us in, or the user may not do something, with what to do about it.
func (p *pool) advised(e *remote.Error) *remote.Error {
	more := *e
	switch e.Code {
	case "NOAUTH", "WRONGPASS":
		more.Text += " The password is REDIS_AUTH, or REDIS_PERSECOND_AUTH for limits per second"
		if p.sentinels != nil {
			more.Text += "; one in REDIS_URL is the sentinels', and not this master's"
		}
	case "NOPERM":
		user, _, _ := p.config.credentials(p.target.auth) // it has been read before
		more.Text += "; allow it in Redis: " + p.grant().Command(cmp.Or(user, "default"), false)
	}
	return &more
}

// served returns an error if the server at the other end of l does not have what decisions need.
func (p *pool) served(l *link) error {
	if p.sentinels != nil && l.server.Role == "slave" {
		return store.Failed(ClassReadOnly, l.addr, "the sentinels say that this is the master, but it is a replica")
	}
	return l.lacks.Unserved(p.config.KeyFormat == OurKeys)
}

// SetDomains tells the names of the domains that are limited. With [ReferenceKeys] the keys of counters begin with them,
// and the user has to be allowed to use these.
func (b *Backend) SetDomains(names []string) {
	for _, p := range b.pools() {
		p.domains.Store(&names)
		p.rechecks.Add(1)
		if p.one != nil {
			p.one.tick()
		}
		if p.cluster != nil {
			for _, n := range *p.cluster.nodes.Load() {
				n.tick()
			}
		}
	}
}

// Exec implements [probe.Conn].
func (w *writer) Exec(ctx context.Context, commands []redis.Cmder) error {
	return w.exec(ctx, commands, true)
}

// probe finds out again what the user of w's connection may not do.
func (w *writer) probe(ctx context.Context) {
	p := w.node.pool
	w.probed, w.rechecks, w.unsure = time.Now(), p.rechecks.Load(), false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.opTimeout())
	defer cancel()
	found, err := probe.Permissions(ctx, w, p.needs, &w.link.can, p.domains.Load())
	if err != nil || found.Unserved(p.config.KeyFormat == OurKeys) != nil {
		w.hangUp()
		return
	}
	w.report(&found)
}

// suspicious reports whether it is time to probe w's connection.
func (w *writer) suspicious() bool {
	return w.rechecks != w.node.pool.rechecks.Load() || (w.unsure || w.denied) && time.Since(w.probed) > probeEach
}

// report reports what the user of w's connection may not do, and when that is over.
func (w *writer) report(found *probe.Missing) {
	n, p := w.node, w.node.pool
	before := w.denied
	w.denied = found.Fatal()
	switch {
	case w.denied && !before:
		n.denied.Add(1)
	case !w.denied && before && n.denied.Add(-1) == 0:
		p.observer.Event(remote.Event{Kind: EventPermitted, Node: n.addr})
	}
	if !found.Any() {
		return
	}
	e := remote.Event{Kind: EventLimited, Node: n.addr, Detail: p.grant().Command(w.link.user, !found.Free)}
	if w.denied {
		e.Kind = EventDenied
	}
	e.Err = store.Failed(ClassNoAuth, w.link.addr, found.Text(w.link.user))
	p.observer.Event(e)
}
