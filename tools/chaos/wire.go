package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// wire is a proxy between a server and its backend.
type wire struct {
	*toxiproxy.Proxy

	e    *env
	addr string // address to connect to
}

// wire returns a proxy on loopback to an address. It closes at the end of the check.
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

// poison adds a toxic of this kind (latency, timeout, reset_peer, slicer, limit_data, bandwidth) to the data from Redis. The kind
// is also its name.
func (w *wire) poison(kind string, attributes map[string]any) {
	text, err := json.Marshal(map[string]any{"name": kind, "type": kind, "stream": "downstream", "attributes": attributes})
	w.e.must(err)
	_, err = w.Toxics.AddToxicJson(bytes.NewReader(text))
	w.e.must(err)
}

// cure removes a toxic.
func (w *wire) cure(ctx context.Context, kind string) { w.e.must(w.Toxics.RemoveToxic(ctx, kind)) }

// lead redirects new connections to another address.
func (w *wire) lead(addr string) {
	w.Lock()
	defer w.Unlock()
	w.Upstream = addr
}
