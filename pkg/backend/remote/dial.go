package remote

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// Bounds and times of connections.
const (
	maxDials     = 4
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
	keepAlive    = 5 * time.Second
	unanswered   = time.Second // see [UserTimeout]
)

// Dialer opens connections, with bounded concurrency.
type Dialer struct {
	// TLS returns the TLS configuration of a new connection, which is used once; nil means no TLS. See [TLSFiles.Load].
	TLS func() (*tls.Config, error)
	// Timeout bounds the time to connect, including the TLS handshake.
	Timeout time.Duration
	// Permits bounds the number of concurrent attempts of all dialers that share it; see [NewPermits].
	Permits chan struct{}
}

// NewPermits returns permits for four concurrent attempts.
func NewPermits() chan struct{} { return make(chan struct{}, maxDials) }

// Dial opens a connection, with TLS if configured.
func (d *Dialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	select {
	case d.Permits <- struct{}{}:
		defer func() { <-d.Permits }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	nd := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 3},
		Control:         UserTimeout(unanswered),
	}
	if d.TLS == nil {
		return nd.DialContext(ctx, network, addr)
	}
	config, err := d.TLS()
	if err != nil {
		return nil, err
	}
	conn, err := nd.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if config.ServerName == "" {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			config.ServerName = strings.TrimSuffix(host, ".")
		}
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake failed
		return nil, handshakeError(err)
	}
	return secured, nil
}

// Backoff determines the delay before the next attempt to connect: up to 50 ms at first, later up to a second, with full jitter. The zero
// value is ready to use.
type Backoff struct{ most time.Duration }

// Next returns the delay after another failure.
func (b *Backoff) Next() time.Duration {
	b.most = min(max(2*b.most, firstBackoff), lastBackoff)
	return time.Millisecond + rand.N(b.most)
}

// Reset must be called after a successful attempt.
func (b *Backoff) Reset() { b.most = 0 }
