package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

// Timeouts of connecting and of dead connections. grpc-go servers close connections with pings more often than every 5
// minutes; the kernel's probes are more frequent.
const (
	connectTimeout   = 10 * time.Second
	keepaliveTime    = 5*time.Minute + 10*time.Second
	keepaliveTimeout = 20 * time.Second
)

// TLS configures TLS for the control plane. Its files are read for each connection.
type TLS struct {
	On         bool
	Cert, Key  string // files of this server's certificate and key; both or none
	CA         string // file of the CA of the control plane's certificate; empty means the system's CAs
	ServerName string // name in the control plane's certificate; empty means the host of the target
}

// dial returns a connection, which opens with the first stream.
func (c *Client) dial() (*grpc.ClientConn, error) {
	creds, err := c.config.TLS.credentials()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(c.config.Server,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(connect),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.config.Keepalive, Timeout: c.config.KeepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.config.MaxMessage)),
		grpc.WithDisableServiceConfig(),
	)
}

// connect dials with TCP keep-alive, which detects a dead peer within half a minute.
func connect(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		return d.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
	}
	return d.DialContext(ctx, "tcp", address)
}

func (t TLS) credentials() (credentials.TransportCredentials, error) { //nolint:ireturn // gRPC's own
	if !t.On {
		return insecure.NewCredentials(), nil
	}
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.Cert != "" || t.Key != "" {
		pair, err := smallfile.KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("loading the certificate %q and key %q for the control plane: %w", t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if t.CA != "" {
		pem, err := smallfile.Read(t.CA, smallfile.MaxSize)
		if err != nil {
			return nil, fmt.Errorf("loading the control plane's CA: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("loading the control plane's CA: %q has no certificate in PEM form", t.CA)
		}
	}
	return credentials.NewTLS(c), nil
}
