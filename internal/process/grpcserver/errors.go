package grpcserver

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errWaiting is the error of a call that was shed before its message arrived.
var errWaiting = status.Error(codes.Unavailable,
	"too many calls wait for their message, because clients have sent headers and nothing else; GRPC_MAX_WAITING_CALLS sets the maximum")

// ErrPanic is the error of a call whose handler panicked.
var ErrPanic = status.Error(codes.Internal, "internal error: the call panicked; see the server's log")

// errStreams is the error of a stream in excess of its connection's maximum.
var errStreams = status.Error(codes.ResourceExhausted, "a connection may have at most 16 open streams, besides the calls of its service")

// errLongName is the error of a health check of a service whose name is too long.
var errLongName = status.Errorf(codes.InvalidArgument, "the name of a service may have at most %d bytes", maxName)

// errSize is the error of a stream's message that is too large.
var errSize = status.Errorf(codes.ResourceExhausted, "a message may have at most %d MiB", MaxMessage>>20)

// errPrefix is the error of a compressed message on a stream without grpc-encoding.
var errPrefix = errors.New("it is compressed, but the stream has no grpc-encoding")
