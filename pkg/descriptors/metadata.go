package descriptors

import "github.com/ratelimitd/ratelimitd/internal/rulefile"

// metadata validates metadata, which is sent unchanged in answers.
func (c *compiler) metadata(m map[string]any, where rulefile.Mark, path string) {
	if m == nil {
		return
	}
	if size := weigh(m); size > rulefile.MaxMetadataSize {
		c.Fail(where, path, "error parsing metadata: it has %d bytes: want at most %d", size, rulefile.MaxMetadataSize)
	}
}

// weigh returns the size of metadata in bytes of text; other scalars count as one byte.
func weigh(v any) (size int) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			size += len(k) + weigh(e)
		}
	case []any:
		for _, e := range v {
			size += weigh(e)
		}
	case string:
		size = len(v)
	default:
		size = 1
	}
	return size
}
