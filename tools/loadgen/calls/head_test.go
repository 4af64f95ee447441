package calls

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

// TestHead: the headers of a connection's second call refer to those of the first, as far as the server keeps those; each block says the
// same.
func TestHead(t *testing.T) {
	t.Parallel()
	h, dec := newHead(20*time.Millisecond), hpack.NewDecoder(tableSize, nil)
	read := func(dec *hpack.Decoder) (size int) {
		t.Helper()
		block := h.block()
		got, err := dec.DecodeFull(block)
		if err != nil || !slices.Equal(got, fields(20*time.Millisecond)) {
			t.Errorf("the headers are read as %v, %v", got, err)
		}
		return len(block)
	}
	first, second, third := read(dec), read(dec), read(dec)
	if n := len(fields(time.Second)); first < 60 || second > n || third != second {
		t.Errorf("blocks have %d, %d and %d bytes; want all headers first, and then a byte for each of %d", first, second, third, n)
	}
	h.resize(0)
	for range 3 {
		read(dec)
		read(hpack.NewDecoder(0, nil)) // which knows of no call before
	}
}
