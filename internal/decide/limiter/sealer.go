package limiter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Sizes of a reservation ID in bytes. An ID is the random name of the reservation in counters, followed by an authentication code that
// requires a key. textSize is its length in base64 without padding.
const (
	nameSize = len(engine.ReservationID{})
	codeSize = 16
	idSize   = nameSize + codeSize
	textSize = (idSize*8 + 5) / 6
)

// Sealer makes reservation IDs and recognizes IDs made with its keys. An ID reveals nothing about its reservation. The zero Sealer has no
// key and makes no IDs. A Sealer is safe for concurrent use.
type Sealer struct {
	keys atomic.Pointer[[][]byte]
	own  atomic.Bool // the key was set by SetOwnKey
}

// SetKeys sets the keys. The first key seals IDs; every key opens them.
func (s *Sealer) SetKeys(keys ...[]byte) { s.keys.Store(&keys) }

// SetOwnKey sets a key that only this process has and that ends with it. IDs of earlier processes are then indistinguishable from forged
// ones.
func (s *Sealer) SetOwnKey(key []byte) {
	s.own.Store(true)
	s.SetKeys(key)
}

// foreign returns the outcome of an ID that no key made.
func (s *Sealer) foreign() int {
	if s.own.Load() {
		return countUnknown
	}
	return countForged
}

// Ready reports whether s has a key.
func (s *Sealer) Ready() bool {
	keys := s.keys.Load()
	return keys != nil && len(*keys) > 0
}

// seal returns the ID of a reservation, or "" if s has no key.
func (s *Sealer) seal(name engine.ReservationID) string {
	if !s.Ready() {
		return ""
	}
	id := code(name[:nameSize:nameSize], (*s.keys.Load())[0])
	return base64.RawURLEncoding.EncodeToString(id)
}

// open returns the name of the reservation with an ID. The ID may be arbitrary bytes.
func (s *Sealer) open(id []byte) (name engine.ReservationID, ok bool) {
	var room [idSize]byte
	if len(id) != textSize || !s.Ready() {
		return name, false
	}
	if n, err := base64.RawURLEncoding.Strict().Decode(room[:], id); err != nil || n != idSize {
		return name, false
	}
	for _, key := range *s.keys.Load() {
		if hmac.Equal(code(room[:nameSize:nameSize], key), room[:]) {
			return engine.ReservationID(room[:nameSize]), true
		}
	}
	return name, false
}

// code returns name followed by its authentication code.
func code(name, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(name)
	return append(name, h.Sum(nil)[:codeSize]...)
}
