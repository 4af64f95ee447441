package memcached

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash/crc32"
	"strconv"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// maxKey is the longest key that memcached takes.
const maxKey = 250

// Key names the counter of op, which has one limit, in the window that now is in.
func (c *Config) Key(op *backend.Op, now engine.Micros) string {
	return c.keyOf(op, engine.Micros(windowOf(op.Limits, now).Window))
}

// keyOf names op's counter in the window that begins at start.
func (c *Config) keyOf(op *backend.Op, start engine.Micros) string {
	buf := make([]byte, 0, len(c.KeyPrefix)+max(len(op.Name), 64)+20)
	buf = append(buf, c.KeyPrefix...)
	if c.KeyFormat == ReferenceKeys {
		buf = append(buf, op.Name...)
		buf = strconv.AppendInt(buf, int64(start/1e6), 10)
		return legal(buf)
	}
	buf = append(buf, "rl:{"...)
	buf = base64.RawURLEncoding.AppendEncode(buf, op.Key[:])
	buf = append(buf, '}')
	buf = append(buf, op.Limits[0].Slot().String()...)
	buf = append(buf, ':')
	buf = strconv.AppendInt(buf, int64(start), 10)
	return legal(buf)
}

// legal is key where memcached takes it, and a hash of it where it is too long or holds what ends a key. No key of ours or
// of the reference's is such a hash, since they hold a brace or an underscore.
func legal(key []byte) string {
	ok := len(key) <= maxKey
	for i := 0; ok && i < len(key); i++ {
		ok = key[i] > ' ' && key[i] != 0x7f
	}
	if ok {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return "rl:#" + hex.EncodeToString(sum[:])
}

// shard is the index of the server that holds a key, among so many. It is that of the reference's client.
func shard(key string, servers int) int {
	if servers == 1 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(key)) % uint32(servers))
}
