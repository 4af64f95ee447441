package calls

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

// TestHead: the headers of a connection's second call refer to the dynamic table, except for the path, if the server keeps them. Each
// block decodes to the same headers.
func TestHead(t *testing.T) {
	t.Parallel()
	const path = 50 // bytes, encoded literally
	h, dec := newHead(20*time.Millisecond), hpack.NewDecoder(tableSize, nil)
	read := func(dec *hpack.Decoder) (block []byte) {
		t.Helper()
		block = h.block()
		got, err := dec.DecodeFull(block)
		if err != nil || !slices.Equal(got, fields(20*time.Millisecond)) {
			t.Errorf("the headers are read as %v, %v", got, err)
		}
		return slices.Clone(block)
	}
	first, second, third := len(read(dec)), len(read(dec)), len(read(dec))
	if n := len(h.fields); first < path+30 || second > path+n || third != second {
		t.Errorf("blocks have %d, %d and %d bytes; want all headers first, and then the path and a byte for each of %d", first, second, third, n)
	}
	for _, size := range []uint32{0, 100, 1 << 16} {
		h.resize(size)
		if block := read(dec); block[0]>>5 != 1 {
			t.Errorf("after the server keeps %d bytes a block begins with %#x, not with the size of the table", size, block[0])
		}
		read(dec)
		read(dec)
		if size == 0 {
			read(hpack.NewDecoder(0, nil)) // without earlier calls
		}
	}
}
