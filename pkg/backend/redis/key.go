package redis

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Key returns the name of op's counter, in the window that contains now if names have one. The states of its limits and of
// its penalty lie under this name with a short suffix each, unless the name is the reference's.
func (c *Config) Key(op *backend.Op, now engine.Micros) string {
	if c.KeyFormat == ReferenceKeys {
		r := referenceCodec{prefix: c.KeyPrefix}
		start, _ := r.window(op, now)
		return r.key(op, start)
	}
	s := scriptCodec{prefix: c.KeyPrefix}
	return s.route(op)
}
