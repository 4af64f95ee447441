package memcached

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// execute executes a single item or several checks. It returns one of their errors.
func (s *server) execute(items []*item) (e *remote.Error) {
	if err := retryStale(func() error { return s.do(items) }); err != nil {
		e = classify(s.name, err)
		fail(items, e)
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
	case it.peeks():
		return s.peek(items)
	case it.mode == backend.Take:
		return s.take(it)
	case it.mode == backend.Refund:
		return s.refund(it)
	default:
		if err := s.client.Delete(it.key); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
		it.decideAt(0)
		return nil
	}
}

// refund subtracts hits. It does not retry if the second of its commands fails.
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
	it.decideAt(count)
	return nil
}

// peek reads the counters of items with one command.
func (s *server) peek(items []*item) error {
	keys := make([]string, 0, len(items))
	for _, it := range items {
		keys = append(keys, it.key)
	}
	got, err := s.client.GetMulti(keys)
	if s.count(Command{Name: CommandMultiGet, Keys: len(keys), Found: len(got)}, err); err != nil {
		return err
	}
	for _, it := range items {
		text := "0"
		if stored := got[it.key]; stored != nil {
			text = strings.TrimRight(string(stored.Value), " ") // decr pads a shorter number with spaces
		}
		if count, err := strconv.ParseUint(text, 10, 64); err != nil {
			it.err = classify(s.name, errNumber) // affects only this counter
		} else {
			it.decideAt(count)
		}
	}
	return nil
}

var errNumber = errors.New("a counter is not a number")

// attempts limits the retries of take if the counter appears or disappears between its commands.
const attempts = 8

var errRestless = errors.New("the counter keeps appearing and disappearing")

// take adds the item's hits and decides by the previous count. memcached executes one command at a time, so concurrent takes see
// different counts. If the counter does not exist, take creates it, unless another process has created it in the meantime.
func (s *server) take(it *item) error {
	for range attempts {
		after, err := s.client.Increment(it.key, it.hits)
		if s.count(Command{Name: CommandIncrement}, err); err == nil {
			s.decide(it, after)
		}
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
		err = s.client.Add(it.stored(it.hits))
		if s.count(Command{Name: CommandAdd}, err); err == nil {
			s.decide(it, it.hits)
		}
		if !errors.Is(err, memcache.ErrNotStored) {
			return err
		}
	}
	return errRestless
}

// count reports a command and its outcome.
func (s *server) count(c Command, err error) {
	switch c.Code = CodeError; {
	case err == nil:
		c.Code = CodeSuccess
	case errors.Is(err, memcache.ErrCacheMiss):
		c.Code = CodeMiss
	case errors.Is(err, memcache.ErrNotStored):
		c.Code = CodeNotStored
	case errors.Is(err, errStale):
		return
	}
	s.backend.config.Command(c)
}

// stored returns the memcached item of a counter with the given count.
func (it *item) stored(count uint64) *memcache.Item {
	return &memcache.Item{Key: it.key, Value: strconv.AppendUint(nil, count, 10), Expiration: expiration(time.Now(), it.lasts)}
}

// decide decides a take whose hits brought the counter to after, and subtracts hits that do not count. If subtracting fails,
// the decision stands, and the counter rejects too early.
func (s *server) decide(it *item, after uint64) {
	undo := it.decideTake(after - it.hits)
	if after < it.hits { // a counter of another program wrapped around at 64 bits
		_ = s.client.Set(it.stored(engine.MaxHits)) // errors: see above
	} else if undo > 0 {
		_, _ = s.client.Decrement(it.key, undo) // errors: see above
	}
}
