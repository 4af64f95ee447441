package memcachedtest

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Service is the name of the service whose servers a [DNS] knows.
const Service = "_memcached._tcp.example.org"

// DNS is a DNS server on loopback that knows the servers of [Service], and resolves every other name to 127.0.0.1.
type DNS struct {
	conn net.PacketConn
	wg   sync.WaitGroup

	mu      sync.Mutex
	targets map[string]uint16 // the ports by name; if empty, it answers that there is no such service
	asked   int
}

// NewDNS starts a DNS server that does not know any servers yet. It ends with the test.
func NewDNS(tb testing.TB) *DNS {
	tb.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		tb.Fatal(err)
	}
	d := &DNS{conn: conn}
	d.wg.Go(d.serve)
	tb.Cleanup(func() {
		_ = conn.Close()
		d.wg.Wait()
	})
	return d
}

// Addr returns the host:port on which the server listens, over UDP.
func (d *DNS) Addr() string { return d.conn.LocalAddr().String() }

// Resolver returns a resolver that asks only d.
func (d *DNS) Resolver() *net.Resolver { return Resolver(d.Addr()) }

// Resolver returns a resolver that asks only the DNS server at addr.
func Resolver(addr string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", addr)
	}}
}

// Set sets where the servers are from now on: their ports by name.
func (d *DNS) Set(targets map[string]uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.targets = targets
}

// Asked returns how often the server was asked for the service.
func (d *DNS) Asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func (d *DNS) serve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		d.answer(&m)
		if packed, err := m.Pack(); err == nil {
			_, _ = d.conn.WriteTo(packed, from) // the client may have gone
		}
	}
}

func (d *DNS) answer(m *dnsmessage.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	q := m.Questions[0]
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
		}}
		return
	}
	if q.Type != dnsmessage.TypeSRV || q.Name.String() != Service+"." {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	d.asked++
	if len(d.targets) == 0 {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(d.targets))) {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
			Body:   &dnsmessage.SRVResource{Port: d.targets[name], Target: dnsmessage.MustNewName(name)},
		})
	}
}
