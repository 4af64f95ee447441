package memcached

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// fleet is the servers, in the order that determines which key lives where.
type fleet struct {
	names   []string
	servers []*server // a server that is named twice is here twice
}

// newFleet returns the fleet of the named servers. It reuses the servers of before, which may be nil.
func (b *Backend) newFleet(names []string, before *fleet) *fleet {
	f := &fleet{names: names}
	known := map[string]*server{}
	if before != nil {
		for i, name := range before.names {
			known[name] = before.servers[i]
		}
	}
	for _, name := range names {
		if known[name] == nil {
			known[name] = b.newServer(name)
		}
		f.servers = append(f.servers, known[name])
	}
	return f
}

// start runs the servers that are not running yet, until ctx ends.
func (f *fleet) start(ctx context.Context, wg *sync.WaitGroup) {
	for _, s := range f.servers {
		if s.cancel == nil {
			var own context.Context
			own, s.cancel = context.WithCancel(ctx)
			wg.Go(func() { s.run(own) })
		}
	}
}

// watch asks DNS for the servers, repeatedly if so configured, until ctx ends.
func (b *Backend) watch(ctx context.Context, wg *sync.WaitGroup) {
	var wait remote.Backoff
	for ctx.Err() == nil {
		names, err := b.lookUp(ctx)
		next := b.config.SRVRefresh
		switch {
		case err == nil:
			b.adopt(ctx, names, wg)
			if next == 0 {
				return
			}
		case ctx.Err() != nil:
			return
		default:
			e := classify(b.config.SRV, err)
			b.unknown.Store(e.NotSent())
			b.config.Observer.Event(remote.Event{Kind: EventLookupFailed, Node: b.config.SRV, Err: e})
			if b.fleet.Load() == nil {
				next = wait.Next()
			}
		}
		pause(ctx, next, nil)
	}
}

var errNoServers = errors.New("DNS has no servers under that name")

// patience is how long DNS may take to answer.
const patience = 5 * time.Second

// lookUp asks DNS. The names are sorted as in the reference, so that keys live on the same servers.
func (b *Backend) lookUp(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	srv := splitSRV(b.config.SRV)
	_, found, err := b.config.Resolver.LookupSRV(ctx, srv[0], srv[1], srv[2])
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errNoServers
	}
	var names []string
	for _, r := range found {
		names = append(names, fmt.Sprintf("%s:%d", r.Target, r.Port))
	}
	slices.Sort(names)
	return names, nil
}

// grace is how long a server that DNS no longer names is kept, for calls that are about to use it.
const grace = time.Second

// adopt switches to the named servers.
func (b *Backend) adopt(ctx context.Context, names []string, wg *sync.WaitGroup) {
	before := b.fleet.Load()
	if before != nil && slices.Equal(before.names, names) {
		return
	}
	f := b.newFleet(names, before)
	if before != nil {
		b.tell(before, f)
	}
	f.start(ctx, wg)
	b.fleet.Store(f)
	if before == nil {
		return
	}
	for _, s := range before.servers {
		if !slices.Contains(f.servers, s) {
			wg.Go(func() {
				pause(ctx, grace, nil)
				s.cancel()
			})
		}
	}
}

// tell reports a change of servers.
func (b *Backend) tell(before, now *fleet) {
	b.config.Observer.Event(remote.Event{Kind: EventServersChanged, Node: b.config.SRV, Detail: strings.Join(now.names, ",")})
	for _, s := range before.servers {
		if !slices.Contains(now.servers, s) {
			s.breaker.Retire()
		}
	}
}
