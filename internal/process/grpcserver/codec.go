package grpcserver

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
)

// Receiver receives the encoded message of a call, without protobuf's codec.
type Receiver interface {
	// Receive copies or references what it needs of data.
	Receive(data mem.BufferSlice)
}

// Sender is an answer that is already encoded.
type Sender interface {
	// Send returns the encoded answer, which must not change any more.
	Send() mem.BufferSlice
}

// Reply is the encoded answer to a call. It counts as owed by its connection until grpc has written or dropped it.
type Reply struct {
	mem.SliceBuffer

	conn *netlimit.Conn
	refs atomic.Int32
}

// SendBy sends answer, which contains r, on a stream of conn.
func (r *Reply) SendBy(stream grpc.ServerStream, conn *netlimit.Conn, answer any) error {
	r.owedBy(conn)
	err := stream.SendMsg(answer)
	if (err != nil || stream.Context().Err() != nil) && r.refs.Swap(-1<<30) > 0 { // grpc may never free r
		conn.AnswerDone(len(r.SliceBuffer))
	}
	return err
}

func (r *Reply) owedBy(conn *netlimit.Conn) {
	r.conn = conn
	r.refs.Store(1)
	conn.AnswerQueued(len(r.SliceBuffer))
}

// reply is an answer of a method other than ShouldRateLimit, with its connection.
type reply struct {
	message any
	conn    *netlimit.Conn
}

// Ref implements [mem.Buffer].
func (r *Reply) Ref() { r.refs.Add(1) }

// Free implements [mem.Buffer].
func (r *Reply) Free() {
	if r.refs.Add(-1) == 0 && r.conn != nil {
		r.conn.AnswerDone(len(r.SliceBuffer))
	}
}

// codec handles Receiver and Sender, and leaves other messages to protobuf's codec.
type codec struct{ protobuf encoding.CodecV2 }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if s, ok := v.(Sender); ok {
		return s.Send(), nil
	}
	to, ok := v.(reply)
	if !ok {
		return c.protobuf.Marshal(v)
	}
	data, err := c.protobuf.Marshal(to.message)
	if err != nil {
		return nil, err
	}
	defer data.Free()
	r := &Reply{SliceBuffer: data.Materialize()}
	r.owedBy(to.conn)
	return mem.BufferSlice{r}, nil
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(Receiver); ok {
		r.Receive(data)
		return nil
	}
	if err := bounded(data, v); err != nil {
		return err
	}
	return c.protobuf.Unmarshal(data, v)
}

// Limits of messages of methods other than ShouldRateLimit. Decoding multiplies the size of such a message, and happens before the
// sender is authenticated.
const (
	maxOther  = 1 << 20  // bytes; 500 tenants in one call take half of this
	maxValues = 32 << 10 // an entry to explain has three: itself, its key, and its value
)

var (
	errOtherSize   = fmt.Errorf("a message to this method may have at most %d MiB", maxOther>>20)
	errOtherValues = fmt.Errorf("a message to this method may have at most %d values", maxValues)
)

// bounded returns an error if a message is too large to decode into v.
func bounded(data mem.BufferSlice, v any) error {
	m, ok := v.(protoreflect.ProtoMessage)
	if !ok {
		return nil
	}
	if data.Len() > maxOther {
		return errOtherSize
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	if valuesLeft(b.ReadOnlyData(), m.ProtoReflect().Descriptor(), maxValues) < 0 {
		return errOtherValues
	}
	return nil
}

// valuesLeft subtracts the number of values in a message from left. It stops at invalid bytes, which protobuf will report.
func valuesLeft(message []byte, kind protoreflect.MessageDescriptor, left int) int {
	for len(message) > 0 && left >= 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 {
			break
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, wire, message); n < 0 {
			break
		}
		left--
		if f := kind.Fields().ByNumber(number); f != nil && f.Message() != nil && wire == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			left = valuesLeft(value, f.Message(), left)
		}
		message = message[n:]
	}
	return left
}

// Name implements [encoding.CodecV2].
func (c codec) Name() string { return c.protobuf.Name() }
