package descriptors

import (
	"fmt"
	"iter"
	"maps"
	"math"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// metadata checks metadata, which is sent in answers unchanged.
func (c *compiler) metadata(m map[string]any, where rulefile.Mark, path string) {
	if m == nil {
		return
	}
	if size, why := weigh(m, rulefile.MaxMetadataDepth); why != "" {
		c.Fail(where, path, "error parsing metadata: %s", why)
	} else if size > rulefile.MaxMetadataSize {
		c.Fail(where, path, "error parsing metadata: it has %d bytes: want at most %d", size, rulefile.MaxMetadataSize)
	}
}

// weigh returns how many bytes of text there are in metadata, counting any other scalar as one, or why it cannot be
// sent.
func weigh(v any, depth int) (size int, why string) {
	var inner iter.Seq2[string, any]
	switch v := v.(type) {
	case map[string]any:
		inner = maps.All(v)
	case []any:
		inner = func(yield func(string, any) bool) {
			for _, e := range v {
				if !yield("", e) {
					return
				}
			}
		}
	case string:
		return len(v), ""
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, fmt.Sprintf("%v: JSON, the format of /json, has no such number", v)
		}
		return 1, ""
	default:
		return 1, ""
	}
	if depth <= 0 {
		return 0, fmt.Sprintf("it is nested more than %d deep", rulefile.MaxMetadataDepth)
	}
	for k, e := range inner {
		n, bad := weigh(e, depth-1)
		if bad != "" {
			return 0, bad
		}
		size += len(k) + n
	}
	return size, ""
}
