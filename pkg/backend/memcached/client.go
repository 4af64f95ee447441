package memcached

import (
	"cmp"
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

// newClient returns a client of s. It keeps all connections: s closes those that are not needed.
func (s *server) newClient() *memcache.Client {
	c := memcache.NewFromSelector(address{s})
	c.Timeout = max(remote.RoundTrip(s.backend.config.OpTimeout), remote.SilentAfter)
	c.MaxIdleConns = s.backend.config.MaxConns
	c.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.dial(context.WithoutCancel(ctx)) // which has a time-out of its own
	}
	return c
}

// address is a selector with a single server, and its address.
type address struct{ server *server }

// Network returns tcp or unix.
func (a address) Network() string { return a.server.network }

// String returns the address.
func (a address) String() string { return a.server.name }

// PickServer returns the server.
func (a address) PickServer(string) (net.Addr, error) { return a, nil }

// Each calls f with the server.
func (a address) Each(f func(net.Addr) error) error { return f(a) }

// conn is a connection of a client. It tells its server what happens.
type conn struct {
	net.Conn
	server *server

	// Guarded by server.mu.
	used  time.Time // when it was opened, or last written to
	fresh bool      // nothing has been written to it
}

// errStale is the error of a command that was not sent, because the connection had ended while nothing used it.
var errStale = errors.New("the connection has ended")

// Write notes that the server is asked something.
func (c *conn) Write(b []byte) (int, error) {
	if !c.server.use(c) {
		return 0, errStale
	}
	c.server.breaker.Silence.Sent()
	return c.Conn.Write(b)
}

// Read notes that the server answers, or that it will not on this connection.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch silence := c.server.breaker.Silence; {
	case n > 0:
		silence.Received()
	case remote.ClassOf(err) != remote.Timeout:
		silence.Forget()
	}
	return n, err
}

// Close closes the connection. gomemcache does so when it no longer knows what comes next on it.
func (c *conn) Close() error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.drop(c)
	return nil
}

// again calls f, which sends commands, until they were sent on a connection that had not ended: there are only so many that
// have. gomemcache panics on a reply that is a lone line feed, and what a server sends must not end this process.
func again(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // the bug is gomemcache's
			err = fmt.Errorf("reading what the server sent: %v", p)
		}
	}()
	for err = f(); errors.Is(err, errStale); err = f() {
	}
	return err
}

// carryOut carries out items: a single one, or several checks. It returns one of their errors.
func (s *server) carryOut(items []*item) (e *remote.Error) {
	if err := again(func() error { return s.do(items) }); err != nil {
		e = classify(s.name, err)
		for _, it := range items {
			it.err = e
		}
	}
	for _, it := range items {
		e = cmp.Or(e, it.err)
	}
	return e
}

// do sends the commands of items.
func (s *server) do(items []*item) error {
	it := items[0]
	switch {
	case it.looks():
		return s.look(items)
	case it.mode == backend.Take:
		return s.take(it)
	case it.mode == backend.Refund:
		return s.refund(it)
	default:
		if err := s.client.Delete(it.key); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
		it.found(0)
		return nil
	}
}

// refund takes hits away. If that has failed in part it does not begin again.
func (s *server) refund(it *item) error {
	count, err := s.client.Decrement(it.key, it.hits)
	if err == nil && count+it.hits >= engine.MaxHits {
		if count, err = s.client.Increment(it.key, it.hits); errors.Is(err, errStale) {
			err = net.ErrClosed
		}
	}
	if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return err
	}
	it.found(count)
	return nil
}

// look reads the counters of items with one command.
func (s *server) look(items []*item) error {
	keys := make([]string, 0, len(items))
	for _, it := range items {
		keys = append(keys, it.key)
	}
	got, err := s.client.GetMulti(keys)
	switch {
	case errors.Is(err, errStale):
		return err
	case err != nil:
		s.tell(Command{CommandMultiGet, CodeError, len(keys), 0})
		return err
	}
	s.tell(Command{CommandMultiGet, CodeSuccess, len(keys), len(got)})
	for _, it := range items {
		if err := it.read(got[it.key]); err != nil { // concerns this counter only
			it.err = classify(s.name, err)
		}
	}
	return nil
}

func (s *server) tell(c Command) { s.backend.config.Command(c) }

var errNumber = errors.New("a counter is not a number")

// read decides it on the stored counter; nil means that there is none.
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
// of concurrent takes sees a different count. If the counter does not exist it is added, unless another process has done
// so in the meantime.
func (s *server) take(it *item) error {
	for range attempts {
		after, err := s.client.Increment(it.key, it.hits)
		if s.count(CommandIncrement, err); err == nil {
			s.settle(it, after)
		}
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
		err = s.client.Add(it.stored(it.hits))
		if s.count(CommandAdd, err); err == nil {
			s.settle(it, it.hits)
		}
		if !errors.Is(err, memcache.ErrNotStored) {
			return err
		}
	}
	return errRestless
}

// count reports a command and its outcome.
func (s *server) count(name CommandName, err error) {
	c := Command{Name: name, Code: CodeError}
	switch {
	case err == nil:
		c.Code = CodeSuccess
	case errors.Is(err, memcache.ErrCacheMiss):
		c.Code = CodeMiss
	case errors.Is(err, memcache.ErrNotStored):
		c.Code = CodeNotStored
	case errors.Is(err, errStale):
		return
	}
	s.tell(c)
}

// stored returns the item to store for a counter that stands at count.
func (it *item) stored(count uint64) *memcache.Item {
	return &memcache.Item{Key: it.key, Value: strconv.AppendUint(nil, count, 10), Expiration: expiration(time.Now(), it.lasts)}
}

// settle decides it, given the counter after its hits were added, and takes away what did not fit. If that fails
// the decision stands, and the counter rejects more than it should.
func (s *server) settle(it *item, after uint64) {
	undo := it.took(after - it.hits)
	if after < it.hits { // memcached wraps around at 64 bits: another program has stored something huge there
		_ = s.client.Set(it.stored(engine.MaxHits)) // see above
	} else if undo > 0 {
		_, _ = s.client.Decrement(it.key, undo) // see above
	}
}
