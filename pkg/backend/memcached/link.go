package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// link is one connection, wrapped in a gomemcache client that never opens another one. It has one user at a time. So
// each use has a deadline of its own, which gomemcache does not support, and only the server's pool decides when to
// connect.
type link struct {
	node    string // the server's name
	conn    *conn
	client  *memcache.Client
	tell    func(Command)
	used    time.Time // when it was last given back
	present bool      // the client has been given the connection
}

// conn is a connection whose deadline is that of its current use, whatever gomemcache asks for.
type conn struct {
	net.Conn
	until   time.Time
	closed  bool
	silence *remote.Silence // of the server; nil until it has been met
}

// Write notes that the server is asked something.
func (c *conn) Write(b []byte) (int, error) {
	if c.silence != nil {
		c.silence.Ask()
	}
	return c.Conn.Write(b)
}

// Read notes that the server answers, or that it will not on this connection.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case c.silence == nil:
	case n > 0:
		c.silence.Hear()
	case remote.ClassOf(err) != remote.Timeout:
		c.silence.Forget()
	}
	return n, err
}

// SetDeadline sets the deadline of the current use, and ignores its argument.
func (c *conn) SetDeadline(time.Time) error { return c.Conn.SetDeadline(c.until) }

// Close closes the connection. gomemcache does so when it no longer knows what comes next on it.
func (c *conn) Close() error {
	c.closed = true
	return c.Conn.Close()
}

func newLink(node string, nc net.Conn, tell func(Command)) *link {
	l := &link{node: node, conn: &conn{Conn: nc}, tell: tell, used: time.Now()}
	l.client = memcache.NewFromSelector(only{nc.RemoteAddr()})
	l.client.MaxIdleConns = 1
	l.client.Timeout = time.Hour // conn knows better
	l.client.DialContext = func(context.Context, string, string) (net.Conn, error) {
		if l.present {
			return nil, errBroken
		}
		l.present = true
		return l.conn, nil
	}
	return l
}

// only is a selector with a single server.
type only struct{ addr net.Addr }

// PickServer returns the server.
func (o only) PickServer(string) (net.Addr, error) { return o.addr, nil }

// Each calls f with the server.
func (o only) Each(f func(net.Addr) error) error { return f(o.addr) }

// broken reports whether the link can no longer be used.
func (l *link) broken() bool { return l.conn.closed }

// ping waits until the server answers with its version.
func (l *link) ping(until time.Time) error {
	l.conn.until = until
	return l.guard(l.client.Ping)
}

// guard calls f. gomemcache panics on a reply that is a lone line feed, and what a server sends must not end this
// process.
func (l *link) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // the bug is gomemcache's
			_ = l.conn.Close() // who knows what comes next on it
			err = fmt.Errorf("reading what the server sent: %v", p)
		}
	}()
	return f()
}

// exchange carries out items in order, until the given time, and returns how many it did: fewer than all if the link
// broke.
func (l *link) exchange(items []*item, until time.Time) int {
	l.conn.until = until
	done := 0
	for done < len(items) && !l.broken() {
		n := 1
		for items[done].looks() && done+n < len(items) && items[done+n].looks() {
			n++
		}
		some := items[done : done+n]
		if err := l.guard(func() error { return l.do(some) }); err != nil {
			e := classify(l.node, err)
			for _, it := range some {
				it.err = e
			}
		}
		done += n
	}
	return done
}

// looks reports whether it only reads a counter.
func (it *item) looks() bool { return it.hits == 0 && it.mode != backend.Reset }

// do carries out items: a single one, or several looks.
func (l *link) do(items []*item) error {
	it := items[0]
	switch {
	case it.looks():
		return l.look(items)
	case it.mode == backend.Take:
		return l.take(it)
	case it.mode == backend.Give:
		count, err := l.client.Decrement(it.key, it.hits)
		if err == nil && count+it.hits >= engine.MaxHits {
			count, err = l.client.Increment(it.key, it.hits)
		}
		if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
		it.found(count)
		return nil
	default:
		if err := l.client.Delete(it.key); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
		it.found(0)
		return nil
	}
}

// look reads counters, all at once.
func (l *link) look(items []*item) error {
	if len(items) == 1 {
		got, err := l.client.Get(items[0].key)
		found := 1
		if errors.Is(err, memcache.ErrCacheMiss) {
			got, err, found = nil, nil, 0
		}
		if err != nil {
			l.tell(Command{CommandMultiGet, CodeError, 1, 0})
			return err
		}
		l.tell(Command{CommandMultiGet, CodeSuccess, 1, found})
		return items[0].read(got)
	}
	keys := make([]string, 0, len(items))
	for _, it := range items {
		keys = append(keys, it.key)
	}
	got, err := l.client.GetMulti(keys)
	if err != nil {
		l.tell(Command{CommandMultiGet, CodeError, len(keys), 0})
		return err
	}
	l.tell(Command{CommandMultiGet, CodeSuccess, len(keys), len(got)})
	for _, it := range items {
		if err := it.read(got[it.key]); err != nil { // concerns this counter only
			it.err = classify(l.node, err)
		}
	}
	return nil
}

var errNumber = errors.New("a counter is not a number")

// read decides it on what is stored; nil means that there is no counter.
func (it *item) read(stored *memcache.Item) error {
	if stored == nil {
		it.found(0)
		return nil
	}
	// A decr that leaves fewer digits pads with blanks.
	count, err := strconv.ParseUint(strings.TrimRight(string(stored.Value), " "), 10, 64)
	if err != nil {
		return errNumber
	}
	it.found(count)
	return nil
}

// attempts bounds how often take tries if a counter comes and goes between an incr and an add.
const attempts = 8

var errRestless = errors.New("the counter keeps appearing and disappearing")

// take adds the hits of it and decides on what was there before: memcached serializes commands, so each of any number
// of concurrent takes sees a different count. If the counter does not exist it is added, unless somebody else has done
// so in the meantime.
func (l *link) take(it *item) error {
	for range attempts {
		after, err := l.client.Increment(it.key, it.hits)
		if err == nil {
			l.tell(Command{Name: CommandIncrement, Code: CodeSuccess})
			return l.settle(it, after)
		}
		if !errors.Is(err, memcache.ErrCacheMiss) {
			l.tell(Command{Name: CommandIncrement, Code: CodeError})
			return err
		}
		l.tell(Command{Name: CommandIncrement, Code: CodeMiss})
		err = l.client.Add(it.stored(it.hits))
		if err == nil {
			l.tell(Command{Name: CommandAdd, Code: CodeSuccess})
			return l.settle(it, it.hits)
		}
		if !errors.Is(err, memcache.ErrNotStored) {
			l.tell(Command{Name: CommandAdd, Code: CodeError})
			return err
		}
		l.tell(Command{Name: CommandAdd, Code: CodeNotStored})
	}
	return errRestless
}

// stored returns the item to store for a counter that stands at count.
func (it *item) stored(count uint64) *memcache.Item {
	return &memcache.Item{Key: it.key, Value: strconv.AppendUint(nil, count, 10), Expiration: expiration(time.Now(), it.lasts)}
}

// settle decides it, given the counter after its hits were added, and takes away what was added in vain. If that fails
// the decision stands, and the counter refuses more than it should.
func (l *link) settle(it *item, after uint64) error {
	undo := it.took(after - it.hits)
	if after < it.hits { // memcached wraps around at 64 bits: somebody has stored something huge there
		_ = l.client.Set(it.stored(engine.MaxHits)) // see above
		return nil
	}
	if undo > 0 {
		_, _ = l.client.Decrement(it.key, undo) // see above
	}
	return nil
}
