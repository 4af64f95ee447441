package memcached

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash/crc32"
	"strconv"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// maxKey is the maximum length of a key in memcached.
const maxKey = 250

// Key returns the key of op's counter in the window that contains now. op must have one limit.
func (c *Config) Key(op *backend.Op, now engine.Micros) string {
	return c.keyOf(op, engine.Micros(windowOf(op.Limits, now).Window))
}

// keyOf returns the key of op's counter in the window that begins at start.
func (c *Config) keyOf(op *backend.Op, start engine.Micros) string {
	buf := make([]byte, 0, len(c.KeyPrefix)+max(len(op.Name), 64)+20)
	buf = append(buf, c.KeyPrefix...)
	if c.KeyFormat == ReferenceKeys {
		return legal(strconv.AppendInt(append(buf, op.Name...), int64(start/1e6), 10))
	}
	buf = append(buf, "rl:{"...)
	buf = base64.RawURLEncoding.AppendEncode(buf, op.Key[:])
	buf = append(append(buf, '}'), op.Limits[0].Slot().String()...)
	return legal(strconv.AppendInt(append(buf, ':'), int64(start), 10))
}

// legal returns key if memcached accepts it, and otherwise a hash of it. The hash differs from all other keys of ratelimitd and of the
// reference, which contain a brace or an underscore.
func legal(key []byte) string {
	ends := func(r rune) bool { return r <= ' ' || r == 0x7f }
	if len(key) <= maxKey && !bytes.ContainsFunc(key, ends) {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return "rl:#" + hex.EncodeToString(sum[:])
}

// shard returns the index of the server of a key, as the reference's client computes it.
func shard(key string, servers int) int {
	return int(crc32.ChecksumIEEE([]byte(key)) % uint32(servers))
}
