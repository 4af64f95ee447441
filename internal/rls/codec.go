package rls

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// codec passes our own types through and leaves the rest to protobuf's codec.
type codec struct{ protobuf encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ours := v.(*answer); ours {
		return a.slice[:], nil
	}
	return c.protobuf.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if a, ours := v.(*arrival); ours {
		a.receive(data)
		return nil
	}
	return c.protobuf.Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (c codec) Name() string { return c.protobuf.Name() }
