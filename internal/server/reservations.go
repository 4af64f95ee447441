package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/secret"
	"github.com/ratelimitd/ratelimitd/internal/settings"
)

// How often the key is asked for: until there is one, and after that, because the store may have lost it; and how often it
// is looked whether a rule needs one.
const (
	keyRetry  = 100 * time.Millisecond
	keyCheck  = 5 * time.Second
	keyNeeded = 500 * time.Millisecond
)

const (
	keySize    = 32       // of a key that is made here
	leastInKey = 32       // characters in a line of RESERVATION_KEY_FILE
	mostInKeys = 64 << 10 // bytes in the file
)

// reservations holds the key that ids of reservations are made with. As a task it shares it with other replicas.
type reservations struct {
	sealer limiter.Sealer
	secret func(ctx context.Context, offered []byte) ([]byte, error) // nil if the key is known
	needed func() bool                                               // whether a rule takes reservations
	log    *slog.Logger
	keys   [][]byte // the one in use, and then the one before it
}

// newReservations takes the key from RESERVATION_KEY_FILE, or makes one: to be offered to the others where a store is
// shared, and for this process alone elsewhere. needed says whether a rule takes reservations.
func newReservations(s *settings.Settings, st *store, log *slog.Logger, needed func() bool) (*reservations, error) {
	r := &reservations{log: log, needed: needed}
	if name := s.Backend.ReservationKey; name != "" {
		keys, err := readKeys(name)
		if err != nil {
			return nil, fmt.Errorf("%w (RESERVATION_KEY_FILE)", err)
		}
		r.sealer.SetKeys(keys...)
		return r, nil
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	r.keys = [][]byte{key}
	if r.secret = st.reservationKey; r.secret == nil {
		r.sealer.SetKeys(key)
	}
	return r, nil
}

// readKeys returns the lines of a file.
func readKeys(name string) (keys [][]byte, err error) {
	text, err := secret.ReadFile(name, mostInKeys)
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
		return nil, fmt.Errorf("%s is empty: it must have a key of at least %d characters", name, leastInKey)
	}
	return keys, nil
}

// String names the task.
func (r *reservations) String() string { return "key of reservations" }

// notReady returns why requests that reserve would be charged at once, and ids be taken for forged; "" if they would not.
func (r *reservations) notReady() string {
	if r.secret == nil || r.sealer.Ready() || !r.needed() {
		return ""
	}
	return "the store, which keeps it for all replicas, has not been asked yet"
}

// Run keeps the key in step with the store, once a rule needs it. Where the store has lost it, the one in use is put back;
// where it has another one, ids that were made with the one before are still accepted.
func (r *reservations) Run(ctx context.Context) error {
	logged, good := false, time.Now()
	for {
		wait := keyNeeded
		if r.needed() {
			err := r.sync(ctx)
			if wait = keyRetry; err == nil {
				wait, logged, good = keyCheck, false, time.Now()
			}
			if err != nil && !logged && time.Since(good) > 2*keyCheck && ctx.Err() == nil {
				logged = true
				r.log.Warn("the key of reservations cannot be shared with other replicas: without it hits are charged at once", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (r *reservations) sync(ctx context.Context) error {
	key, err := r.secret(ctx, r.keys[0])
	if err != nil {
		return err
	}
	if !bytes.Equal(key, r.keys[0]) {
		r.keys = [][]byte{key, r.keys[0]}
	}
	r.sealer.SetKeys(r.keys...)
	return nil
}
