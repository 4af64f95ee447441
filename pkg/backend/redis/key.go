package redis

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Key returns the name of op's counter, in the window that contains now if the format includes windows. The keys of its limits and of its
// penalty are this name with a short suffix, except in the reference's format.
func (c *Config) Key(op *backend.Op, now engine.Micros) string {
	if c.KeyFormat == ReferenceKeys {
		r := referenceCodec{prefix: c.KeyPrefix}
		start, _ := r.window(op, now)
		return r.key(op, start)
	}
	s := scriptCodec{prefix: c.KeyPrefix}
	return s.route(op)
}
