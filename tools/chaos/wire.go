package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// wire is a proxy between a server and what it connects to.
type wire struct {
	*toxiproxy.Proxy

	e    *env
	addr string // to connect to
}

// wire returns a proxy to an address, which ends with the check. It listens on loopback.
func (e *env) wire(ctx context.Context, to string) *wire {
	addr := net.JoinHostPort("127.0.0.1", e.port(ctx))
	e.mu.Lock()
	if e.toxics == nil {
		e.toxics = toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	}
	e.mu.Unlock()
	w := &wire{toxiproxy.NewProxy(e.toxics, addr, addr, to), e, addr}
	e.must(w.Start())
	e.atEnd(w.Stop)
	return w
}

// poison makes connections bad in the way that kind names (latency, timeout, reset_peer, slicer, limit_data, bandwidth),
// from now on, to what comes from Redis. The kind is its name, too.
func (w *wire) poison(kind string, attributes map[string]any) {
	text, err := json.Marshal(map[string]any{"name": kind, "type": kind, "stream": "downstream", "attributes": attributes})
	w.e.must(err)
	_, err = w.Toxics.AddToxicJson(bytes.NewReader(text))
	w.e.must(err)
}

// cure takes away what poison did.
func (w *wire) cure(ctx context.Context, kind string) { w.e.must(w.Toxics.RemoveToxic(ctx, kind)) }

// lead has new connections lead to another address.
func (w *wire) lead(addr string) {
	w.Lock()
	defer w.Unlock()
	w.Upstream = addr
}
