package admin

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/throttle"
)

// Bounds of what is slowed down.
const (
	slowFor     = time.Second
	slowOneFrom = 4   // calls with wrong tokens from one address that are waited out at a time: those are its guesses in a second
	slowAll     = 256 // the same from all addresses
	longToken   = 32  // bytes of a token that nobody guesses, however often they try
)

// Guard slows those down who guess tokens, and counts them. One guards all listeners of a process. A nil guard does nothing.
type Guard struct {
	failed   func()
	pause    time.Duration
	unusable *throttle.Log // of files of tokens, which any caller has read

	mu      sync.Mutex
	waiting map[netip.Addr]int // calls with wrong tokens that are waited out, by where they came from
	all     int
}

// NewGuard returns a guard that calls failed for each call that is refused for who makes it.
func NewGuard(failed func()) *Guard {
	return &Guard{failed: failed, pause: slowFor, unusable: throttle.Every(time.Minute), waiting: make(map[netip.Addr]int)}
}

// crowded reports whether so many wrong tokens came just now, from an address or from all, that no further short one is looked
// at. A long one is: otherwise whoever sends wrong ones from where an operator is, as through the same proxy, would keep them out.
func (g *Guard) crowded(from net.Addr) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all >= slowAll || g.waiting[hostOf(from)] >= slowOneFrom
}

// logs reports whether to log that a file cannot be used, and how often that was left out.
func (g *Guard) logs(file string) (omitted int, ok bool) {
	if g == nil {
		return 0, true
	}
	return g.unusable.Allow(file)
}

// refused counts a call that is refused.
func (g *Guard) refused() {
	if g != nil && g.failed != nil {
		g.failed()
	}
}

// slow waits before a wrong token is answered.
func (g *Guard) slow(from net.Addr) {
	if g == nil {
		return
	}
	host := hostOf(from)
	g.mu.Lock()
	g.all++
	g.waiting[host]++
	g.mu.Unlock()
	time.Sleep(g.pause) // also if the caller has gone, who may come back at once
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.waiting[host]--; g.waiting[host] == 0 {
		delete(g.waiting, host)
	}
}

// hostOf returns the IP address of a connection, or of IPv6 the network of 64 bits, since one machine has all of its addresses;
// connections that have none are one.
func hostOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if network, err := ip.Prefix(64); err == nil && ip.Is6() {
		return network.Addr()
	}
	return ip
}
