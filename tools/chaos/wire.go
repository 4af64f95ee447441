package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// wires makes proxies whose connections can be made bad.
type wires struct{ server *toxiproxy.ApiServer }

// wire is a proxy between a server and what it connects to.
type wire struct {
	*toxiproxy.Proxy

	addr string // to connect to
}

// wire returns a proxy to an address, which ends with the check. It listens on loopback.
func (e *env) wire(ctx context.Context, to string) (*wire, error) {
	port, err := e.ports.Free(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	if e.toxics == nil {
		e.toxics = &wires{toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
	}
	e.mu.Unlock()
	w := &wire{toxiproxy.NewProxy(e.toxics.server, port, "127.0.0.1:"+port, to), "127.0.0.1:" + port}
	if err := w.Start(); err != nil {
		return nil, err
	}
	e.atEnd(w.Stop)
	return w, nil
}

// poison makes connections bad in the way that kind names (latency, timeout, reset_peer, slicer, limit_data, bandwidth),
// from now on, to what comes from Redis. The kind is its name, too.
func (w *wire) poison(kind string, attributes map[string]any) error {
	text, err := json.Marshal(map[string]any{"name": kind, "type": kind, "stream": "downstream", "attributes": attributes})
	if err != nil {
		return err
	}
	if _, err := w.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
		return fmt.Errorf("adding %s: %w", text, err)
	}
	return nil
}

// cure takes away what poison did.
func (w *wire) cure(ctx context.Context, kind string) error { return w.Toxics.RemoveToxic(ctx, kind) }
