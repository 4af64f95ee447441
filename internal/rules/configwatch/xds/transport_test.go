package xds_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// lives checks that a client without its control plane keeps its rules and reports the loss, and then gets the current
// rules.
func lives(t *testing.T, f *follower, breakIt, mend func()) {
	t.Helper()
	f.wants(t, "shop=3")
	good := f.rules.Rules()
	lost := f.count(xds.EventDisconnected)
	breakIt()
	testkit.Eventually(t, "the loss was noticed", func() bool { return f.count(xds.EventDisconnected) > lost && !f.isCurrent() })
	if f.rules.Rules() != good {
		t.Error("the last good set is gone")
	}
	testkit.Eventually(t, "the log tells of it", func() bool { // the log comes last
		return strings.Contains(f.log.String(), "no control plane: the rules do not change")
	})
	mend()
	f.wants(t, "shop=4")
	testkit.Eventually(t, "the rules are current", f.isCurrent)
}

func TestX7Reset(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "1", config("a", "shop", 3))
			w := testkit.NewProxy(t, p.address)
			f := follow(t, xds.Config{Server: w.Addr(), Delta: delta})
			lives(t, f, func() {
				w.Target("127.0.0.1:1")
				w.Reset()
			}, func() {
				p.set(t, "2", config("a", "shop", 4))
				w.Target(p.address)
			})
		})
	}
}

func TestX7SilentServer(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "1", config("a", "shop", 3))
			w := testkit.NewProxy(t, p.address)
			f := follow(t, xds.Config{Server: w.Addr(), Delta: delta})
			silent := newPlane(t) // without a snapshot, it accepts streams but sends nothing
			lives(t, f, func() {
				w.Target(silent.address)
				w.Cut()
				testkit.Eventually(t, "it has asked", func() bool { return len(silent.all()) > 0 })
			}, func() {
				silent.set(t, "1", config("a", "shop", 4))
			})
		})
	}
}

func TestX7SilentFromTheStart(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := follow(t, xds.Config{Server: p.address, NodeID: "me"})
	testkit.Eventually(t, "it is said whom nothing was sent for", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.Contains(f.waiting, `has sent nothing for node "me"`)
	})
	if f.rules.Rules() != nil || f.isCurrent() || f.Connected() {
		t.Error("there are rules, or it says that they are current, or that it is connected")
	}
	p.setFor(t, "me", "1", config("a", "shop", 3))
	f.wants(t, "shop=3")
}

// TestX7OneBytePerSecond: bytes arrive so slowly that handshakes time out.
func TestX7OneBytePerSecond(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.set(t, "1", config("a", "shop", 3))
	w := testkit.NewProxy(t, p.address)
	f := follow(t, xds.Config{Server: w.Addr()})
	lives(t, f, func() {
		w.Replies(func(to io.Writer, from io.Reader) {
			one := make([]byte, 1)
			for {
				if _, err := from.Read(one); err != nil {
					return
				}
				if _, err := to.Write(one); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		w.Cut()
		testkit.Eventually(t, "it has come back", func() bool { return w.Accepted.Load() >= 2 })
	}, func() {
		p.set(t, "2", config("a", "shop", 4))
		w.Replies(nil)
		w.Cut() // before the handshake's timeout
	})
}

// TestX7HalfOpen: pings, which gRPC sends at most every 10 s, detect a connection that appears open but transfers
// nothing.
func TestX7HalfOpen(t *testing.T) {
	t.Parallel()
	p := newPlane(t, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}))
	p.set(t, "1", config("a", "shop", 3))
	w := testkit.NewProxy(t, p.address)
	halt := make(chan struct{})
	w.Replies(func(to io.Writer, from io.Reader) {
		b := make([]byte, 4096)
		for {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			select {
			case <-halt: // discarded
			default:
				_, _ = to.Write(b[:n])
			}
		}
	})
	f := follow(t, xds.Config{Server: w.Addr(), Keepalive: 10 * time.Second, KeepaliveTimeout: time.Second})
	lives(t, f, func() { close(halt) }, func() {
		p.set(t, "2", config("a", "shop", 4))
		w.Replies(nil)
	})
}

func TestX7GoAwayEverySecond(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Second, MaxConnectionAgeGrace: 100 * time.Millisecond}))
			p.set(t, "1", config("a", "shop", 3))
			f := follow(t, xds.Config{Server: p.address, Delta: delta})
			lives(t, f, func() {}, func() { p.set(t, "2", config("a", "shop", 4)) })
			testkit.Eventually(t, "three streams have ended", func() bool { return f.count(xds.EventDisconnected) >= 3 })
			if all := f.outcomes(); len(all) != 2 {
				t.Errorf("loads %q: want two, as each stream but one brings the same", all)
			}
		})
	}
}

// secured returns the options of a control plane that reads its certificate from two files for each connection, and
// requires client certificates of the CA.
func secured(ca *certstest.CA, cert, key string) grpc.ServerOption { //nolint:ireturn // gRPC's own
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		},
	}))
}

// files are the files of a control plane and a client with the same CA.
type files struct {
	*certstest.CA

	dir string
}

func newFiles(t *testing.T) *files {
	t.Helper()
	f := &files{certstest.NewCA(t, "ca"), t.TempDir()}
	f.renew(t)
	return f
}

func (f *files) path(name string) string { return filepath.Join(f.dir, name) }

// renew writes valid files.
func (f *files) renew(t *testing.T) {
	t.Helper()
	certstest.Write(t, f.path("ca.pem"), f.PEM)
	f.write(t, "server", f.Issue(t, x509.Certificate{DNSNames: []string{"plane.example"}}))
	f.write(t, "client", f.Issue(t, x509.Certificate{DNSNames: []string{"client.example"}}))
}

func (f *files) write(t *testing.T, whose string, p certstest.Pair) {
	t.Helper()
	p.Write(t, f.path(whose+".pem"), f.path(whose+".key"))
}

func TestX7Certificates(t *testing.T) {
	t.Parallel()
	past := time.Now().Add(-time.Minute)
	for _, tt := range []struct {
		name   string
		spoil  func(t *testing.T, f *files)
		reason string
	}{
		{"wrong", func(t *testing.T, f *files) {
			t.Helper()
			f.write(t, "server", certstest.NewCA(t, "other").Issue(t, x509.Certificate{DNSNames: []string{"plane.example"}}))
		}, "unknown authority"},
		{"of another name", func(t *testing.T, f *files) {
			t.Helper()
			f.write(t, "server", f.Issue(t, x509.Certificate{DNSNames: []string{"another.example"}}))
		}, "another.example"},
		{"expired", func(t *testing.T, f *files) {
			t.Helper()
			f.write(t, "server", f.Issue(t, x509.Certificate{DNSNames: []string{"plane.example"}, NotAfter: past}))
		}, "expired"},
		{"of ours expired", func(t *testing.T, f *files) {
			t.Helper()
			f.write(t, "client", f.Issue(t, x509.Certificate{NotAfter: past}))
		}, ""}, // the control plane sends the reason, but not always in time
		{"of ours gone", func(t *testing.T, f *files) {
			t.Helper()
			if err := os.Remove(f.path("client.pem")); err != nil {
				t.Fatal(err)
			}
		}, "loading the certificate"},
		{"CA broken", func(t *testing.T, f *files) {
			t.Helper()
			certstest.Write(t, f.path("ca.pem"), []byte("none"))
		}, "has no certificate in PEM form"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			on := newFiles(t)
			p := newPlane(t, secured(on.CA, on.path("server.pem"), on.path("server.key")))
			p.set(t, "1", config("a", "shop", 3))
			w := testkit.NewProxy(t, p.address)
			f := follow(t, xds.Config{Server: w.Addr(), TLS: xds.TLS{
				On: true, Cert: on.path("client.pem"), Key: on.path("client.key"), CA: on.path("ca.pem"), ServerName: "plane.example",
			}})
			lives(t, f, func() {
				tt.spoil(t, on)
				w.Cut()
				testkit.Eventually(t, "the reason was logged", func() bool { return strings.Contains(f.log.String(), tt.reason) })
			}, func() {
				p.set(t, "2", config("a", "shop", 4))
				on.renew(t)
			})
		})
	}
}

func TestTLSWithoutCATrustsTheSystem(t *testing.T) {
	t.Parallel()
	on := newFiles(t)
	p := newPlane(t, secured(on.CA, on.path("server.pem"), on.path("server.key")))
	f := follow(t, xds.Config{Server: p.address, TLS: xds.TLS{
		On: true, Cert: on.path("client.pem"), Key: on.path("client.key"), ServerName: "plane.example",
	}})
	testkit.Eventually(t, "the stranger was invalid", func() bool { return strings.Contains(f.log.String(), "unknown authority") })
}

func TestX9UpdateDuringFailover(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			w := testkit.NewProxy(t, p.address)
			f := follow(t, xds.Config{Server: w.Addr(), Delta: delta})
			for i := range 5 {
				for j := range uint32(20) {
					p.set(t, fmt.Sprint(j), config("a", "shop", uint32(100*i)+j))
				}
				p.end()
				p = newPlane(t)
				w.Target(p.address)
				p.set(t, "1", config("a", "shop", uint32(1000+i)))
				f.wants(t, fmt.Sprintf("shop=%d", 1000+i))
			}
		})
	}
}

func TestX9UpdateDuringTheEnd(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				p := newPlane(t)
				f := follow(t, xds.Config{Server: p.address, Delta: delta})
				p.set(t, "1", config("a", "shop", 1))
				f.wants(t, "shop=1")
				stop := make(chan struct{})
				var sender sync.WaitGroup
				sender.Go(func() {
					for i := uint32(2); ; i++ {
						select {
						case <-stop:
							return
						default:
							p.set(t, fmt.Sprint(i), config("a", "shop", i))
						}
					}
				})
				f.end()
				close(stop)
				sender.Wait()
			}
		})
	}
}

func TestTheEndWhileWaiting(t *testing.T) {
	t.Parallel()
	silent := newPlane(t)
	for name, server := range map[string]string{"nobody": "127.0.0.1:1", "silence": silent.address} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, xds.Config{Server: server, Backoff: xds.Backoff{First: time.Hour, Initial: time.Hour, Max: time.Hour, NoJitter: true}})
			if name == "nobody" {
				<-f.First()
			} else {
				testkit.Eventually(t, "it has asked", func() bool { return len(silent.all()) > 0 })
			}
			f.end()
		})
	}
}

func TestX8ThousandUpdatesPerSecond(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	const last = 3000
	// This control plane does not wait for answers, unlike go-control-plane's.
	push := func(send func(n int) error) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 1; n <= last; n++ {
			if err := send(n); err != nil {
				return err
			}
			<-tick.C
		}
		<-stop
		return nil
	}
	address := newStub(t, &stub{
		sotw: func(s ads) error {
			return push(func(n int) error { return s.Send(response(n, resources(t, config("a", "shop", uint32(n)))...)) })
		},
		delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			return push(func(n int) error {
				return s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.TypeURL, Nonce: fmt.Sprint(n), Resources: []*discoveryv3.Resource{
					{Name: "a", Version: fmt.Sprint(n), Resource: resources(t, config("a", "shop", uint32(n)))[0]},
				}})
			})
		},
	})
	t.Cleanup(func() { close(stop) })
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, xds.Config{Server: address, Delta: delta})
			f.wants(t, fmt.Sprintf("shop=%d", last))
			f.mu.Lock()
			defer f.mu.Unlock()
			for i := 1; i < len(f.loadsAt); i++ {
				if gap := f.loadsAt[i].Sub(f.loadsAt[i-1]); gap < 90*time.Millisecond {
					t.Errorf("two sets within %v: want at most ten a second", gap)
				}
			}
			if f.events[xds.EventCoalesced]+len(f.loads) != last {
				t.Errorf("%d sets and %d coalesced responses; want %d in all", len(f.loads), f.events[xds.EventCoalesced], last)
			}
			t.Logf("%d sets of %d updates", len(f.loads), last)
		})
	}
}

func TestHeadersAreSentAndNeverLogged(t *testing.T) {
	t.Parallel()
	asked := make(chan metadata.MD, 1)
	address := newStub(t, &stub{sotw: func(s ads) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		select {
		case asked <- md:
		default:
		}
		return nil
	}})
	f := follow(t, xds.Config{Server: address, Headers: map[string]string{"Authorization": "Bearer geheim", "x-zone": "eu"}})
	select {
	case md := <-asked:
		if strings.Join(md.Get("authorization"), "|") != "Bearer geheim" || strings.Join(md.Get("x-zone"), "|") != "eu" {
			t.Errorf("headers %v", md)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("nobody asked")
	}
	<-f.First()
	if strings.Contains(f.log.String(), "geheim") {
		t.Errorf("the log has a secret:\n%s", f.log.String())
	}
}

func TestMaxMessage(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.set(t, "1", config("a", "shop", 3))
	f := follow(t, xds.Config{Server: p.address, MaxMessage: 1000})
	f.wants(t, "shop=3")
	p.set(t, "2", config(strings.Repeat("a", 1000), "shop", 4))
	testkit.Eventually(t, "the message was too large", func() bool { return strings.Contains(f.log.String(), "received message larger than max") })
	f.serves(t, "shop=3")
	p.set(t, "3", config("a", "shop", 5))
	f.wants(t, "shop=5")
}

func TestReload(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "1", config("a", "shop", 3))
			w := testkit.NewProxy(t, p.address)
			f := follow(t, xds.Config{Server: w.Addr(), Delta: delta, Backoff: xds.Backoff{First: time.Hour, Max: time.Hour, NoJitter: true}})
			f.wants(t, "shop=3")
			f.Reload()
			testkit.Eventually(t, "the same was loaded again", func() bool { return len(f.outcomes()) == 2 })
			if err := f.ReloadNow(t.Context()); err != nil || len(f.outcomes()) != 3 {
				t.Errorf("who waits is told %v, after %d loads; want none, after 3", err, len(f.outcomes()))
			}
			if _, err := f.Try(); err == nil {
				t.Error("it is known what the control plane would send")
			}
			p.end()
			testkit.Eventually(t, "the control plane is gone", func() bool { return strings.Contains(f.log.String(), "no control plane") })
			if err := f.ReloadNow(t.Context()); err == nil || !strings.Contains(err.Error(), "no control plane at "+w.Addr()) {
				t.Errorf("who waits for no control plane is told %v", err)
			}
			q := newPlane(t)
			q.set(t, "1", config("a", "shop", 4))
			w.Target(q.address)
			f.Reload() // does not wait for the hour to end
			f.wants(t, "shop=4")
		})
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l := testkit.ListenOn(t, "unix", path)
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &stub{sotw: func(stream ads) error {
		if err := stream.Send(response(1, resources(t, config("a", "shop", 3))...)); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}})
	testkit.Run(t, func(context.Context) error { return s.Serve(l) })
	t.Cleanup(s.Stop)
	f := follow(t, xds.Config{Server: "unix://" + path})
	f.wants(t, "shop=3")
	f.end()
}
