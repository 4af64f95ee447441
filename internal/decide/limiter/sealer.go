package limiter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Sizes of the id of a reservation: the random name by which counters know it, and a code that only a process with the
// key can make. Without padding, base64 of both is as long as it is in text.
const (
	nameSize = len(engine.ReservationID{})
	codeSize = 16
	idSize   = nameSize + codeSize
	textSize = (idSize*8 + 5) / 6
)

// Sealer makes the ids of reservations, and recognizes those that a Sealer with the same key has made. An id says nothing about its
// reservation. The zero Sealer has no key yet, and makes no ids. It is safe for concurrent use.
type Sealer struct {
	keys atomic.Pointer[[][]byte]
	own  atomic.Bool // see SetOwnKey
}

// SetKeys sets the keys. The first one seals, all of them open.
func (s *Sealer) SetKeys(keys ...[]byte) { s.keys.Store(&keys) }

// SetOwnKey sets a key that only this process has. It is lost with the process, so ids from before look the same as ids that
// someone made up.
func (s *Sealer) SetOwnKey(key []byte) {
	s.own.Store(true)
	s.SetKeys(key)
}

// foreign returns the outcome of an id that none of the keys has made.
func (s *Sealer) foreign() int {
	if s.own.Load() {
		return countUnknown
	}
	return countForged
}

// Ready reports whether there is a key.
func (s *Sealer) Ready() bool {
	keys := s.keys.Load()
	return keys != nil && len(*keys) > 0
}

// seal returns the id of a reservation.
func (s *Sealer) seal(name engine.ReservationID) string {
	if !s.Ready() {
		return ""
	}
	id := code(name[:nameSize:nameSize], (*s.keys.Load())[0])
	return base64.RawURLEncoding.EncodeToString(id)
}

// open returns the name of the reservation with an id, which may be anything.
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

// code returns a name followed by its code.
func code(name, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(name)
	return append(name, h.Sum(nil)[:codeSize]...)
}
