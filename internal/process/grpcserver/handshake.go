package grpcserver

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
)

// ErrNothingSent is the error of a handshake with a client that sent nothing, such as a probe that only connects.
var ErrNothingSent = errors.New("the client sent nothing")

// handshakes are credentials that report failed handshakes and the first protocol of each connection.
type handshakes struct {
	credentials.TransportCredentials

	config *Config
}

// ServerHandshake implements [credentials.TransportCredentials].
//
//nolint:ireturn // as grpc wants it
func (h handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	use := h.TransportCredentials
	if at := c.LocalAddr(); h.config.ClearSocket != "" && at.Network() == "unix" && at.String() == h.config.ClearSocket {
		use = insecure.NewCredentials()
	}
	secured, info, err := use.ServerHandshake(c)
	if err == nil {
		if h.config.Began != nil {
			secured = netlimit.Watch(secured, h.config.Began)
		}
		return secured, info, nil
	}
	if h.config.Handshake != nil {
		why := err
		if netlimit.Of(c.LocalAddr()).Silent() {
			why = fmt.Errorf("%w: %w", ErrNothingSent, err)
		}
		h.config.Handshake(c.RemoteAddr(), why)
	}
	return secured, info, err
}
