package secret

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

// How often the key is asked for: until there is one, and after that, because the store may have lost it; and how often it
// is looked whether a rule needs one.
const (
	keyRetry  = 100 * time.Millisecond
	keyCheck  = 5 * time.Second
	keyNeeded = 100 * time.Millisecond
)

const (
	keySize    = 32       // of a key that is made here
	leastInKey = 32       // characters in a line of RESERVATION_KEY_FILE
	mostInKeys = 64 << 10 // bytes in the file
)

// foreignEach is how often the log says that ids come which no server with this one's keys has made.
const foreignEach = time.Minute

// Reservations holds the key that IDs of reservations are made with. As a task it shares the key with other replicas.
type Reservations struct {
	Sealer limiter.Sealer

	shared func(ctx context.Context, offered []byte) ([]byte, error) // nil if the key is known
	uses   Reserver
	begin  func(context.Context) // waits until it is known whether a rule needs the key, and the backend can be asked
	first  chan struct{}         // closed once the key is known, or no rule needs it
	log    *slog.Logger
	keys   [][]byte // the one in use, and then the one before it
	from   string   // where the keys come from, for people

	foreign uint64 // how many ids were logged
}

// Reserver uses the key.
type Reserver interface {
	Reserves() bool     // whether a rule takes reservations
	ForeignIDs() uint64 // how many came that were made with none of the keys
}

// NewReservations takes the keys from file, which is RESERVATION_KEY_FILE; else from k, with which a client that reads the backend must not
// learn how to make IDs; or else makes one: to be offered to the others where a backend is shared, and for this process alone elsewhere. All
// may be empty; shared returns the key that all replicas have.
func NewReservations(
	file string, k *Keys, shared func(ctx context.Context, offered []byte) ([]byte, error), log *slog.Logger,
) (*Reservations, error) {
	r := &Reservations{log: log, first: make(chan struct{})}
	switch {
	case file != "":
		keys, err := readKeys(file)
		if err != nil {
			return nil, fmt.Errorf("%w (RESERVATION_KEY_FILE)", err)
		}
		r.keys, r.from = keys, "RESERVATION_KEY_FILE"
	case k != nil:
		r.keys, r.from = k.Reservations, "CACHE_KEY_SECRET_FILE"
	default:
		key := make([]byte, keySize)
		_, _ = rand.Read(key) // never fails
		if shared == nil {
			r.from = "this process"
			r.Sealer.SetOwnKey(key)
			return r, nil
		}
		r.keys, r.from, r.shared = [][]byte{key}, "Redis", shared
		return r, nil
	}
	r.Sealer.SetKeys(r.keys...)
	return r, nil
}

// Use says what uses the key, before [Reservations.Run] is called. begin waits until that knows whether it needs the key, and the backend can
// be asked.
func (r *Reservations) Use(by Reserver, begin func(context.Context)) { r.uses, r.begin = by, begin }

// readKeys returns the lines of a file.
func readKeys(name string) (keys [][]byte, err error) {
	text, err := smallfile.Read(name, mostInKeys)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && len(line) < leastInKey {
			return nil, fmt.Errorf("%s: a key has %d characters: it must have at least %d", name, len(line), leastInKey)
		}
		if len(line) > 0 {
			keys = append(keys, line)
		}
	}
	if keys == nil {
		return nil, fmt.Errorf("%s is empty: it must contain a key of at least %d characters", name, leastInKey)
	}
	return keys, nil
}

// String names the task.
func (r *Reservations) String() string { return "key of reservations" }

// NotReady returns why requests that reserve would be charged at once, and ids be taken for forged; "" if they would not.
func (r *Reservations) NotReady() string {
	if r.shared == nil || r.Sealer.Ready() || !r.uses.Reserves() {
		return ""
	}
	return "the backend, which keeps it for all replicas, has not been asked yet"
}

// First returns a channel that is closed once requests can reserve, or no rule needs that.
func (r *Reservations) First() <-chan struct{} { return r.first }

// Run keeps the key in step with the store, if it is there, once a rule needs it. Where the store has lost it, the one in use is
// put back; where it has another one, ids that were made with the one before are still accepted. And it reports ids that no
// server with these keys has made.
func (r *Reservations) Run(ctx context.Context) error {
	r.begin(ctx)
	logged, good, told := false, time.Now(), time.Time{}
	for begun := false; ; {
		wait, known := keyCheck, true
		if r.shared != nil {
			wait = keyNeeded
		}
		if r.uses.Reserves() {
			wait = keyCheck
			if err := r.sync(ctx); err == nil {
				logged, good = false, time.Now()
			} else if wait, known = keyRetry, false; !logged && time.Since(good) > 2*keyCheck && ctx.Err() == nil {
				logged = true
				r.log.Warn("the reservation key cannot be shared with other replicas: without it, hits are charged immediately", "error", err)
			}
			if time.Since(told) >= foreignEach && r.tell() {
				told = time.Now()
			}
		}
		if known && !begun {
			begun = true
			close(r.first)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// tell reports whether to log ids.
func (r *Reservations) tell() bool {
	n := r.uses.ForeignIDs()
	if n == r.foreign {
		return false
	}
	r.log.Warn("requests have reservation IDs that were not made with these keys, so the IDs have no effect: they predate a restart without a permanent key, replicas have different keys, or a client invents them",
		"ids", n-r.foreign, "keys", r.from)
	r.foreign = n
	return true
}

func (r *Reservations) sync(ctx context.Context) error {
	if r.shared == nil {
		return nil
	}
	key, err := r.shared(ctx, r.keys[0])
	if err != nil {
		return err
	}
	if !bytes.Equal(key, r.keys[0]) {
		r.keys = [][]byte{key, r.keys[0]}
	}
	r.Sealer.SetKeys(r.keys...)
	return nil
}
