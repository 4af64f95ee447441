package proc

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports finds ports to listen on. Its zero value is ready for use.
type Ports struct {
	mu   sync.Mutex
	last int // that was given away
}

// Free returns a port of 127.0.0.1 that is not in use, and that no other call of it returns. It is not one of those
// that connections are given when they are opened, of which any may be taken before it is used.
func (p *Ports) Free(ctx context.Context) (string, error) {
	const first, last = 10_000, 32_000
	for range last - first {
		port := strconv.Itoa(p.next(first, last))
		if l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("no port is free")
}

// next returns the port to try next.
func (p *Ports) next(first, last int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.last {
	case 0:
		p.last = first + rand.IntN(last-first) // others look for ports too
	case last:
		p.last = first
	default:
		p.last++
	}
	return p.last
}
