package backend

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// Seed hashes keys for tables in this process. Keys are hashes of values that clients choose; the secret random seed keeps clients from
// choosing values whose keys collide in a table.
type Seed [2]uint64

// NewSeed returns a random seed.
func NewSeed() Seed { return Seed{rand.Uint64(), rand.Uint64()} }

// Hash returns the hash of k. All its bits are usable.
func (s *Seed) Hash(k *Key) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(k[:8])^s[0], binary.LittleEndian.Uint64(k[8:])^s[1])
	return hi ^ lo
}
