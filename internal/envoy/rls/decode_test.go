package rls

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// decodeBytes decodes a message like the server.
func decodeBytes(b []byte) (*limiter.Request, error) {
	c := new(call)
	c.hold(mem.SliceBuffer(b))
	err := c.decode()
	return &c.request, err
}

// slow decodes with protobuf, and a copy of Envoy's schema whose strings are bytes, because protobuf rejects strings that are not UTF-8
// and the server accepts them.
type slow struct {
	request protoreflect.MessageDescriptor
}

func newSlow(tb testing.TB) slow {
	tb.Helper()
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, of string) *descriptorpb.FieldDescriptorProto {
		label := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		if strings.HasPrefix(name, "repeated ") {
			label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
		}
		f := &descriptorpb.FieldDescriptorProto{
			Name: new(strings.TrimPrefix(name, "repeated ")), Number: new(number), Type: kind.Enum(), Label: label.Enum(),
		}
		if of != "" {
			f.TypeName = new("." + of)
		}
		return f
	}
	message := func(name string, fields ...*descriptorpb.FieldDescriptorProto) *descriptorpb.DescriptorProto {
		return &descriptorpb.DescriptorProto{Name: new(name), Field: fields}
	}
	const (
		raw    = descriptorpb.FieldDescriptorProto_TYPE_BYTES
		inner  = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		u32    = descriptorpb.FieldDescriptorProto_TYPE_UINT32
		i32    = descriptorpb.FieldDescriptorProto_TYPE_INT32
		u64    = descriptorpb.FieldDescriptorProto_TYPE_UINT64
		truthy = descriptorpb.FieldDescriptorProto_TYPE_BOOL
	)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("slow.proto"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			message("Request", field("domain", 1, raw, ""), field("repeated descriptors", 2, inner, "Descriptor"), field("hits", 3, u32, "")),
			message("Descriptor", field("repeated entries", 1, inner, "Entry"), field("limit", 2, inner, "Override"),
				field("hits", 3, inner, "U64"), field("negative", 4, truthy, "")),
			message("Entry", field("key", 1, raw, ""), field("value", 2, raw, "")),
			message("Override", field("requests", 1, u32, ""), field("unit", 2, i32, ""), field("multiplier", 3, inner, "U32")),
			message("U64", field("value", 1, u64, "")),
			message("U32", field("value", 1, u32, "")),
		},
	}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return slow{file.Messages().ByName("Request")}
}

func (s slow) decode(b []byte) (*limiter.Request, error) {
	m := dynamicpb.NewMessage(s.request)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, err
	}
	get := func(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
		return m.Get(m.Descriptor().Fields().ByName(name))
	}
	has := func(m protoreflect.Message, name protoreflect.Name) bool {
		return m.Has(m.Descriptor().Fields().ByName(name))
	}
	r := &limiter.Request{Domain: get(m, "domain").Bytes(), Hits: uint32(get(m, "hits").Uint())}
	for list, i := get(m, "descriptors").List(), 0; i < list.Len(); i++ {
		dm := list.Get(i).Message()
		d := limiter.Descriptor{Negative: get(dm, "negative").Bool(), HasHits: has(dm, "hits"), HasOverride: has(dm, "limit")}
		d.Hits = get(get(dm, "hits").Message(), "value").Uint()
		om := get(dm, "limit").Message()
		d.Override = descriptors.Override{
			RequestsPerUnit: uint32(get(om, "requests").Uint()),
			Multiplier:      uint32(get(get(om, "multiplier").Message(), "value").Uint()),
		}
		if n := get(om, "unit").Int(); n >= 1 && n <= 7 {
			d.Override.Unit = descriptors.Unit(n)
		}
		for entries, j := get(dm, "entries").List(), 0; j < entries.Len(); j++ {
			em := entries.Get(j).Message()
			d.Entries = append(d.Entries, descriptors.Entry{Key: get(em, "key").Bytes(), Value: get(em, "value").Bytes()})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r, nil
}

// fromEnvoy converts a request in Envoy's types.
func fromEnvoy(m *ratelimitv3.RateLimitRequest) *limiter.Request {
	r := &limiter.Request{Domain: []byte(m.GetDomain()), Hits: m.GetHitsAddend()}
	for _, dm := range m.GetDescriptors() {
		d := limiter.Descriptor{
			Hits: dm.GetHitsAddend().GetValue(), HasHits: dm.GetHitsAddend() != nil, Negative: dm.GetIsNegativeHits(),
			HasOverride: dm.GetLimit() != nil,
			Override: descriptors.Override{
				RequestsPerUnit: dm.GetLimit().GetRequestsPerUnit(),
				Multiplier:      dm.GetLimit().GetUnitMultiplier().GetValue(),
			},
		}
		if n := dm.GetLimit().GetUnit(); n >= 1 && n <= 7 {
			d.Override.Unit = descriptors.Unit(n)
		}
		for _, e := range dm.GetEntries() {
			d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(e.GetKey()), Value: []byte(e.GetValue())})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// render formats all of r, because comparing texts is much faster than cmp.
func render(r *limiter.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain %q, %d hits\n", r.Domain, r.Hits)
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		for _, e := range d.Entries {
			fmt.Fprintf(&b, "%q=%q,", e.Key, e.Value)
		}
		fmt.Fprintf(&b, " hits %v %d, negative %v, override %v %+v\n", d.HasHits, d.Hits, d.Negative, d.HasOverride, d.Override)
	}
	return b.String()
}

// tooMuch reports whether r exceeds the bounds of a request.
func tooMuch(r *limiter.Request) bool {
	for i := range r.Descriptors {
		if len(r.Descriptors[i].Entries) > limiter.MaxEntries {
			return true
		}
	}
	return len(r.Descriptors) > limiter.MaxDescriptors
}

// agree fails the test if the decoder and protobuf decode b differently.
func agree(t *testing.T, oracle slow, b []byte) {
	t.Helper()
	got, err := decodeBytes(b)
	want, wantErr := oracle.decode(b)
	switch {
	case errors.Is(err, errTooDeep): // protobuf allows a depth of 10,000
		return
	case errors.Is(err, limiter.ErrTooManyDescriptors), errors.Is(err, limiter.ErrTooManyEntries):
		if wantErr == nil && !tooMuch(want) {
			t.Fatalf("decode(%x) = %v, protobuf sees no more than there may be", b, err)
		}
		return
	case (err == nil) != (wantErr == nil):
		t.Fatalf("decode(%x) = %v, protobuf says %v", b, err, wantErr)
	case err != nil:
		return
	}
	if got, want := render(got), render(want); got != want {
		t.Fatalf("decode(%x) (-protobuf +ours):\n%s", b, cmp.Diff(want, got))
	}
	var envoy ratelimitv3.RateLimitRequest
	if proto.Unmarshal(b, &envoy) == nil {
		if got, want := render(got), render(fromEnvoy(&envoy)); got != want {
			t.Fatalf("decode(%x) (-Envoy's types +ours):\n%s", b, cmp.Diff(want, got))
		}
	}
}

// sample returns a request with every field.
func sample() *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{
		Domain:     "shop",
		HitsAddend: 1<<32 - 1,
		Descriptors: []*commonv3.RateLimitDescriptor{
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "u1"}, {Key: "path"}}},
			{
				Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "k", Value: strings.Repeat("v", 300)}},
				Limit: &commonv3.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: 5, UnitMultiplier: wrapperspb.UInt32(3),
					Unit: 7, // a week in answers; in requests, the number has no name
				},
				HitsAddend:     wrapperspb.UInt64(1<<64 - 1),
				IsNegativeHits: true,
			},
			{HitsAddend: wrapperspb.UInt64(0), Limit: &commonv3.RateLimitDescriptor_RateLimitOverride{Unit: 99}},
		},
	}
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// field encodes a field with bytes.
func field(number protowire.Number, b ...byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), b)
}

// group encodes nested groups.
func group(depth int) []byte {
	return append(bytes.Repeat([]byte{0x7b}, depth), bytes.Repeat([]byte{0x7c}, depth)...)
}

// oddities returns unusual messages that are valid or invalid by protobuf's rules.
func oddities() map[string][]byte {
	limit := func(b ...byte) []byte { return field(2, b...) }
	return map[string][]byte{
		"nothing":                             nil,
		"domain twice: the last wins":         append(field(1, 'a'), field(1, 'b')...),
		"hits twice: the last wins":           {0x18, 5, 0x18, 6},
		"hits of 64 bits: the lower 32 stay":  {0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"hits packed: another type, unknown":  {0x1a, 1, 5},
		"domain as a number: unknown":         {0x08, 5},
		"descriptor as fixed64: unknown":      {0x11, 1, 2, 3, 4, 5, 6, 7, 8},
		"limit twice: merged":                 field(2, append(limit(0x08, 5), limit(0x10, 2)...)...),
		"multiplier twice: merged":            field(2, limit(0x1a, 2, 0x08, 9, 0x1a, 0)...),
		"hits of a descriptor twice: merged":  field(2, append(field(3, 0x08, 9), field(3)...)...),
		"negative as 2: true":                 field(2, 0x20, 2),
		"negative as 2^64-1: true":            field(2, 0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		"unit below zero":                     field(2, limit(0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)...),
		"unit 2^32+2: the lower 32 bits stay": field(2, limit(0x10, 0x82, 0x80, 0x80, 0x80, 0x10)...),
		"unit 8":                              field(2, limit(0x10, 8)...),
		"empty limit: there all the same":     field(2, limit()...),
		"no UTF-8":                            append(field(1, 0xff, 0xfe), field(2, field(1, append(field(1, 0xc0), field(2, 0x80)...)...)...)...),
		"a varint longer than needed":         {0x98, 0x80, 0x80, 0x00, 0x85, 0x00},
		"groups":                              append(group(3), field(1, 'a')...),
		"groups 100 deep":                     group(100),
		"a group in a descriptor":             field(2, group(2)...),
		"a group that another number ends":    {0x7b, 0x84, 0x01},
		"a group without an end":              {0x7b, 0x08, 1},
		"an end without a group":              {0x7c},
		"a large number inside of a group":    {0x7b, 0x80, 0x80, 0x80, 0x80, 0x10, 0x01, 0x7c},
		"field 0":                             {0x00, 1},
		"field 2^29":                          {0x80, 0x80, 0x80, 0x80, 0x10, 1},
		"wire type 6":                         {0x0e},
		"wire type 7":                         {0x0f},
		"a tag cut short":                     {0x80},
		"a length cut short":                  {0x0a, 0x80},
		"a value cut short":                   {0x0a, 5, 'a'},
		"a length of 2^63":                    {0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
		"a varint of eleven bytes":            {0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"fixed32 cut short":                   {0x7d, 1, 2, 3},
	}
}

func TestDecodeAgreesWithProtobuf(t *testing.T) {
	oracle := newSlow(t)
	whole := marshal(t, sample())
	t.Run("every field", func(t *testing.T) {
		got, err := decodeBytes(whole)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fromEnvoy(sample()), got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("cut anywhere", func(t *testing.T) {
		for n := range len(whole) {
			agree(t, oracle, whole[:n])
		}
	})
	t.Run("any byte changed", func(t *testing.T) {
		for i := range whole {
			for _, x := range []byte{0x01, 0x80, 0xff} {
				changed := bytes.Clone(whole)
				changed[i] ^= x
				agree(t, oracle, changed)
			}
		}
	})
	for name, b := range oddities() {
		t.Run(name, func(t *testing.T) { agree(t, oracle, b) })
	}
}

// TestLargeCallsAreNotPooled checks that the memory of a large request is not pooled.
func TestLargeCallsAreNotPooled(t *testing.T) {
	entries := func(n int) []byte { return field(2, bytes.Repeat(field(1), n)...) }
	for want, b := range map[bool][]byte{
		true:  bytes.Repeat(entries(2), 100),
		false: bytes.Repeat(entries(1), limiter.MaxDescriptors),
	} {
		c := &call{message: b}
		if err := c.decode(); err != nil {
			t.Fatal(err)
		}
		if n := len(c.request.Descriptors); c.reset() != want {
			t.Errorf("what %d descriptors needed is kept: %t, want %t", n, !want, want)
		}
	}
	c := &call{message: bytes.Repeat(entries(200), 10)}
	if err := c.decode(); err != nil || c.reset() {
		t.Errorf("what 2,000 entries needed is kept, %v", err)
	}
}

func TestDecodeBounds(t *testing.T) {
	entries := func(n int) []byte { return field(2, bytes.Repeat(field(1), n)...) }
	for _, tt := range []struct {
		name string
		b    []byte
		want error
	}{
		{"1,024 descriptors", bytes.Repeat(field(2), 1024), nil},
		{"1,025 descriptors", bytes.Repeat(field(2), 1025), limiter.ErrTooManyDescriptors},
		{"1,000,000 descriptors", bytes.Repeat(field(2), 1_000_000), limiter.ErrTooManyDescriptors},
		{"256 entries", entries(256), nil},
		{"257 entries", entries(257), limiter.ErrTooManyEntries},
		{"1,000,000 entries", entries(1_000_000), limiter.ErrTooManyEntries},
		{"256 entries 1,024 times", bytes.Repeat(entries(256), 1024), nil},
		{"groups 100 deep", group(100), nil},
		{"groups 101 deep", group(101), errTooDeep},
		{"groups 1,000,000 deep", group(1_000_000), errTooDeep},
		{"100,000 unknown fields", bytes.Repeat([]byte{0x78, 1}, 100_000), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := decodeBytes(tt.b); !errors.Is(err, tt.want) {
				t.Errorf("decode = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestCallIsReused(t *testing.T) {
	c := new(call)
	long, short := marshal(t, sample()), marshal(t, &ratelimitv3.RateLimitRequest{Domain: "d"})
	for range 3 {
		for _, b := range [][]byte{long, short} {
			c.hold(mem.SliceBuffer(b))
			if err := c.decode(); err != nil {
				t.Fatal(err)
			}
			fresh, err := decodeBytes(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(fresh, &c.request, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("a used call decodes otherwise (-fresh +used):\n%s", diff)
			}
			if !c.reset() {
				t.Fatal("a small call is not kept")
			}
			for _, e := range c.entries[:cap(c.entries)] {
				if e.Key != nil || e.Value != nil {
					t.Fatal("a pooled call points into a message")
				}
			}
		}
	}
	c.hold(mem.SliceBuffer(bytes.Repeat(field(2, bytes.Repeat(field(1), 64)...), 128)))
	if err := c.decode(); err != nil {
		t.Fatal(err)
	}
	if c.reset() {
		t.Error("a huge call is kept")
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	b := marshal(t, sample())
	data := mem.BufferSlice{mem.SliceBuffer(b)}
	c := new(call)
	n := testing.AllocsPerRun(100, func() {
		c.hold(data.MaterializeToBuffer(mem.DefaultBufferPool()))
		if err := c.decode(); err != nil {
			t.Fatal(err)
		}
		c.reset()
	})
	if n != 0 {
		t.Errorf("decoding allocates %v times", n)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(marshal(f, sample()))
	for _, b := range oddities() {
		f.Add(b)
	}
	oracle := newSlow(f)
	f.Fuzz(func(t *testing.T, b []byte) { agree(t, oracle, b) })
}

func BenchmarkDecode(b *testing.B) {
	message := marshal(b, &ratelimitv3.RateLimitRequest{Domain: "bench", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "u12345"}}},
	}})
	data := mem.BufferSlice{mem.SliceBuffer(message)}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		c := new(call)
		for b.Loop() {
			c.hold(data.MaterializeToBuffer(mem.DefaultBufferPool()))
			if err := c.decode(); err != nil {
				b.Fatal(err)
			}
			c.reset()
		}
	})
	b.Run("protobuf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m ratelimitv3.RateLimitRequest
			if err := proto.Unmarshal(message, &m); err != nil {
				b.Fatal(err)
			}
		}
	})
}
