package rls

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// coder encodes headers as Envoy does: it never puts paths into the table, and other fields always.
type coder struct {
	block bytes.Buffer
	enc   *hpack.Encoder
	fresh string // a value for the table
}

func newCoder() *coder {
	c := new(coder)
	c.enc = hpack.NewEncoder(&c.block)
	return c
}

// head returns the headers of a call; extra ones are written out.
func (c *coder) head(path string, extra ...string) []byte {
	c.block.Reset()
	for _, h := range headers() {
		f := hpack.HeaderField{Name: h[0], Value: h[1]}
		if f.Name == ":path" {
			f.Value, f.Sensitive = path, true
		}
		_ = c.enc.WriteField(f) // a buffer takes everything
	}
	if c.fresh != "" {
		_ = c.enc.WriteField(hpack.HeaderField{Name: "x-fresh", Value: c.fresh})
	}
	for i := 0; i < len(extra); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: extra[i], Value: extra[i+1], Sensitive: true})
	}
	return bytes.Clone(c.block.Bytes())
}

// TestStateless: only headers of our method that leave the table as it is are stateless, and whatever is cut off is not.
func TestStateless(t *testing.T) {
	t.Parallel()
	c := newCoder()
	first, second := c.head(method), c.head(method, "x-id", "1")
	c.enc.SetMaxDynamicTableSize(100)
	resized := c.head(method)
	raw := append([]byte{0x83, 4, byte(len(method))}, method...)
	far := append([]byte{0xff, 0x80, 0x01}, raw...) // the field with the number 255
	for name, x := range map[string]struct {
		block []byte
		want  bool
	}{
		"the first of a connection":  {first, false},
		"the second":                 {second, true},
		"after a change of the size": {resized, false},
		"another method":             {newCoder().head("/grpc.health.v1.Health/Check"), false},
		"another one later":          {bytes.Replace(raw, []byte("ShouldRateLimit"), []byte("ShouldRateLimix"), 1), false},
		"without Huffman's code":     {raw, true},
		"a number of two bytes":      {far, true},
		"a number without an end":    {[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, false},
		"no path":                    {[]byte{0x83}, false},
		"two paths":                  {append(bytes.Clone(raw), raw[1:]...), false},
		"nothing":                    {nil, false},
		"a field without a number":   {append([]byte{indexed}, raw...), false},
		"in Huffman's code":          {append([]byte{4, huffman | byte(len(codedMethod))}, hpack.AppendHuffmanString(nil, fullMethod)...), true},
	} {
		if got := stateless(x.block); got != x.want {
			t.Errorf("%s: %t, want %t", name, got, x.want)
		}
	}
	for i := range raw {
		if stateless(raw[:i]) {
			t.Errorf("the first %d bytes of %d are", i, len(raw))
		}
	}
}

// TestSetsTable: a client that has another table than grpc has by itself is known by it.
func TestSetsTable(t *testing.T) {
	t.Parallel()
	for want, settings := range map[bool][]http2.Setting{
		false: {{ID: http2.SettingInitialWindowSize, Val: 100}, {ID: http2.SettingHeaderTableSize, Val: 4096}},
		true:  {{ID: http2.SettingInitialWindowSize, Val: 4096}, {ID: http2.SettingHeaderTableSize, Val: 0}},
	} {
		for _, most := range []int{1, 1 << 10} {
			var out bytes.Buffer
			if err := errors.Join(http2.NewFramer(&out, nil).WriteSettings(settings...), http2.NewFramer(&out, nil).WriteSettingsAck()); err != nil {
				t.Fatal(err)
			}
			var p peek
			for b := range slices.Chunk(out.Bytes(), most) {
				p.scan(b, nil)
			}
			if divided := most == 1; p.tables != (want || divided) {
				t.Errorf("%v in parts of %d: %t", settings, most, p.tables)
			}
		}
	}
}
