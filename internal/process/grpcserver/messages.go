package grpcserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
)

// transport is the source of messages. grpc's transport streams implement it, although this is undocumented; TestMessages detects if
// they no longer do. ReadMessageHeader fills p with the next bytes of the stream.
type transport interface {
	ReadMessageHeader(p []byte) error
	RecvCompress() string
}

// partSize is the size in bytes of the parts in which a message is read, because a client may announce 4 MiB and send
// nothing.
const partSize = 16 << 10

// messages is a stream with several messages from the client. The client may wait with any but the first for as long as it likes, while
// its connection carries other calls, so bytes of a message must be counted as they arrive. grpc's RecvMsg returns only complete
// messages; this type reads them itself.
type messages struct {
	endingStream

	from  transport
	later bool // the next message is not the first
}

// RecvMsg implements grpc.ServerStream.
func (s *messages) RecvMsg(m any) error {
	var call netlimit.Call // stays unused for the first message, which the arrival counts
	if s.later {
		s.of.Conn.Begin(s.of.Context, netlimit.Later, &call)
		defer call.End()
	}
	s.later = true
	message, err := s.next(&call)
	if err == nil {
		err = codec{encoding.GetCodecV2(proto.Name)}.Unmarshal(message, m)
	}
	s.of.Received(0, err)
	if _, ok := status.FromError(err); ok || errors.Is(err, io.EOF) {
		return err
	}
	return status.Errorf(codes.Internal, "reading a message of a stream: %v", err)
}

// next returns the next message, or io.EOF at the end.
func (s *messages) next(call *netlimit.Call) (message mem.BufferSlice, err error) {
	var prefix [5]byte // 1 if the message is compressed, otherwise 0, and its length
	if err := s.from.ReadMessageHeader(prefix[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(prefix[1:])
	if size > MaxMessage {
		return nil, errSize
	}
	for left := int(size); left > 0; left -= partSize {
		part := make([]byte, min(left, partSize))
		call.Hold(len(part))
		if err := s.from.ReadMessageHeader(part); errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		} else if err != nil {
			return nil, err
		}
		message = append(message, mem.SliceBuffer(part))
	}
	if prefix[0] == 0 {
		return message, nil
	}
	compressor := encoding.GetCompressor(s.from.RecvCompress())
	if prefix[0] != 1 || compressor == nil {
		return nil, errPrefix
	}
	return decompress(compressor, message)
}

// decompress returns the decompressed message. It stops at the first byte that exceeds the codec's limit.
func decompress(c encoding.Compressor, message mem.BufferSlice) (mem.BufferSlice, error) {
	r, err := c.Decompress(message.Reader())
	if err != nil {
		return nil, fmt.Errorf("decompressing it: %v", err) //nolint:errorlint // io.EOF means the end of the stream
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxOther+1))
	return mem.BufferSlice{mem.SliceBuffer(plain)}, err
}
