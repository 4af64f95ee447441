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

// Intervals: of requests for the shared key until there is one, of later checks whether the backend has lost it, and of checks
// whether a rule needs a key.
const (
	keyRetry  = 100 * time.Millisecond
	keyCheck  = 5 * time.Second
	keyNeeded = 100 * time.Millisecond
)

const (
	keySize   = 32       // bytes of a generated key
	minInKey  = 32       // minimum characters of a line in RESERVATION_KEY_FILE
	maxInKeys = 64 << 10 // maximum bytes of the file
)

// foreignEach is the interval between log lines about foreign reservation IDs.
const foreignEach = time.Minute

// Reservations holds the keys for reservation IDs. Its task shares the key with other replicas.
type Reservations struct {
	Sealer limiter.Sealer

	shared func(ctx context.Context, offered []byte) ([]byte, error) // fetches or stores the shared key; nil without sharing
	uses   Reserver
	begin  func(context.Context) // waits until the rules are known and the backend is reachable
	first  chan struct{}         // closed once the key is known or no rule needs it
	log    *slog.Logger
	keys   [][]byte // the current key, and the previous one
	from   string   // source of the keys, for people

	foreign uint64 // number of foreign IDs already logged
}

// Reserver is the user of the key.
type Reserver interface {
	Reserves() bool     // whether a rule reserves hits
	ForeignIDs() uint64 // number of IDs made with none of the keys
}

// NewReservations reads the keys from file, which is RESERVATION_KEY_FILE. Without a file it uses the keys of k, which the
// backend does not hold, so that its readers cannot forge IDs. Without k it generates a key. shared then offers that key to other
// replicas and returns the key that all of them use; if shared is nil, the key is valid in this process only.
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

// Use sets the user of the key. It must be called before [Reservations.Run]. begin waits until the rules are known and the
// backend is reachable.
func (r *Reservations) Use(by Reserver, begin func(context.Context)) { r.uses, r.begin = by, begin }

// readKeys returns the keys in a file, one per line.
func readKeys(name string) (keys [][]byte, err error) {
	text, err := smallfile.Read(name, maxInKeys)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && len(line) < minInKey {
			return nil, fmt.Errorf("%s: a key has %d characters: it must have at least %d", name, len(line), minInKey)
		}
		if len(line) > 0 {
			keys = append(keys, line)
		}
	}
	if keys == nil {
		return nil, fmt.Errorf("%s is empty: it must contain a key of at least %d characters", name, minInKey)
	}
	return keys, nil
}

// String names the task.
func (r *Reservations) String() string { return "key of reservations" }

// NotReady returns why requests that reserve would be charged immediately and their IDs be taken for forged ones, or "".
func (r *Reservations) NotReady() string {
	if r.shared == nil || r.Sealer.Ready() || !r.uses.Reserves() {
		return ""
	}
	return "the backend, which keeps it for all replicas, has not been asked yet"
}

// First returns a channel that is closed once requests can reserve, or no rule reserves.
func (r *Reservations) First() <-chan struct{} { return r.first }

// Run synchronizes the key with the backend while a rule needs it. If the backend has lost the key, Run stores it again. If the
// backend has a different key, IDs with the previous key remain valid. Run also logs foreign IDs.
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
			if time.Since(told) >= foreignEach && r.logForeign() {
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

// logForeign logs new foreign IDs and reports whether there were any.
func (r *Reservations) logForeign() bool {
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
