package proc

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports finds free ports to listen on. The zero value is ready for use.
type Ports struct {
	mu   sync.Mutex
	last int // last returned port
}

// Free returns a port of 127.0.0.1 that is not in use and that it has not returned before. It is outside the range of ephemeral ports,
// which any outgoing connection could take before the caller listens.
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

// next returns the next port to try.
func (p *Ports) next(first, last int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.last {
	case 0:
		p.last = first + rand.IntN(last-first) // other processes look for ports too
	case last:
		p.last = first
	default:
		p.last++
	}
	return p.last
}
