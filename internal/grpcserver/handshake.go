package grpcserver

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/internal/netlimit"
)

// ErrNothingSent is why a handshake failed whose client has sent nothing, as a probe that only connects.
var ErrNothingSent = errors.New("the client sent nothing")

// handshakes are credentials whose hooks are told of each handshake that failed, and of what connections begin with.
type handshakes struct {
	credentials.TransportCredentials

	clear string // path of the unix socket that needs none
	hooks Hooks
}

// ServerHandshake implements credentials.TransportCredentials.
//
//nolint:ireturn // as grpc wants it
func (h handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	use := h.TransportCredentials
	if at := c.LocalAddr(); h.clear != "" && at.Network() == "unix" && at.String() == h.clear {
		use = insecure.NewCredentials()
	}
	secured, info, err := use.ServerHandshake(c)
	if err == nil {
		return netlimit.Watch(secured, h.hooks.Began), info, nil
	}
	why := err
	if conn := netlimit.Of(c.LocalAddr()); conn != nil && conn.Silent() {
		why = fmt.Errorf("%w: %w", ErrNothingSent, err)
	}
	h.hooks.Handshake(c.RemoteAddr(), why)
	return secured, info, err
}
