package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

//go:embed envoy.yaml.tmpl
var envoyConfig string

// Names of the servers behind Envoy in load order, besides the peer.
const (
	noFilter        = "no filter"
	ourMemory       = "ratelimitd in memory"
	ourRedis        = "ratelimitd with Redis"
	limitadorMemory = "limitador in memory"
	limitadorRedis  = "limitador with Redis"
	limitadorBehind = "limitador with Redis, written later"
)

// limits are the rules of key "user" for limitador. It checks each limit of a domain for each request, so other rules are
// in another domain.
const limits = `- {namespace: bench, max_value: 4294967295, seconds: 31536000, conditions: [], variables: ["descriptors[0].user"]}
- {namespace: check, max_value: 1, seconds: 31536000, conditions: [], variables: ["descriptors[0].user"]}
`

// startThrough starts Envoy, its rate limit services, and its upstream.
func (s *servers) startThrough(ctx context.Context) (err error) {
	for _, where := range []store{memory, redis} {
		if err := s.startFor(ctx, row{part: throughEnvoy, store: where}); err != nil {
			return err
		}
	}
	s.through = []watched{{name: noFilter}, {name: ourMemory, server: s.memory}, {name: ourRedis, server: s.leasing, redis: s.redis}}
	if s.peer != nil {
		s.through = append(s.through, watched{name: peer, server: s.peer, redis: s.redis})
	}
	if s.c.limitador != "" {
		if err := s.startLimitadors(ctx); err != nil {
			return err
		}
	}
	if err := s.startEnvoy(ctx); err != nil {
		return err
	}
	for _, w := range s.through[1:] {
		if err := counts(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// startLimitadors starts a limitador for each kind of storage.
func (s *servers) startLimitadors(ctx context.Context) error {
	file := filepath.Join(s.dir, "limits.yaml")
	if err := os.WriteFile(file, []byte(limits), 0o600); err != nil {
		return err
	}
	url := "redis://" + s.redis.addr
	for _, x := range []struct {
		name    string
		redis   *process
		storage []string
	}{
		{limitadorMemory, nil, []string{"memory"}},
		{limitadorRedis, s.redis, []string{"redis", url}},
		{limitadorBehind, s.redis, []string{"redis_cached", url}},
	} {
		addr, port, err := s.freeAddr(ctx)
		if err != nil {
			return err
		}
		_, other, err := s.freeAddr(ctx)
		if err != nil {
			return err
		}
		p := &process{addr: addr, Server: &proc.Server{
			Program: s.c.limitador,
			Args:    append([]string{"--rls-ip", "127.0.0.1", "--rls-port", port, "--http-ip", "127.0.0.1", "--http-port", other, file}, x.storage...),
			Stderr:  s.stderr, Ready: proc.Listens(addr),
		}}
		if err := p.Start(ctx); err != nil {
			return err
		}
		s.through = append(s.through, watched{name: x.name, server: p, redis: x.redis})
	}
	return nil
}

// startEnvoy starts an Envoy with one worker and a listener for each of s.through.
func (s *servers) startEnvoy(ctx context.Context) (err error) {
	if s.upstream, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go serveUpstream(s.upstream)
	file := filepath.Join(s.dir, "envoy.yaml")
	s.envoy = &process{Server: &proc.Server{
		Program: s.c.envoy, Args: []string{"-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"}, Stderr: s.stderr,
		Ready: func(ctx context.Context) error {
			for _, w := range s.through {
				if err := proc.Listens(w.listener)(ctx); err != nil {
					return err
				}
			}
			return nil
		},
	}}
	type line struct{ Name, Listen, Server string } // ports
	var lines []line
	for i := range s.through {
		w := &s.through[i]
		l := line{Name: w.name}
		if w.listener, l.Listen, err = s.freeAddr(ctx); err != nil {
			return err
		}
		if w.server != nil {
			l.Server = portOf(w.server.addr)
		}
		w.envoy, lines = s.envoy, append(lines, l)
	}
	var text bytes.Buffer
	t := template.Must(template.New("envoy").Parse(envoyConfig))
	if err := t.Execute(&text, map[string]any{"Lines": lines, "Upstream": portOf(s.upstream.Addr().String())}); err != nil {
		return err
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return err
	}
	return s.envoy.Start(ctx)
}

// portOf returns the port of an address.
func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// serveUpstream answers each request without a body until the listener is closed.
func serveUpstream(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			for r := bufio.NewReader(conn); ; {
				line, err := r.ReadSlice('\n')
				if err == nil && len(line) == len("\r\n") { // end of the request
					_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n")
				}
				if err != nil {
					return
				}
			}
		}()
	}
}

// counts returns an error unless a server admits one request and rejects the next one in the domain with a limit of one.
func counts(ctx context.Context, w watched) error {
	var got []int
	for range 2 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.listener+"/check", http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("x-user", w.name)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		got = append(got, resp.StatusCode)
		_ = resp.Body.Close()
	}
	if want := []int{http.StatusOK, http.StatusTooManyRequests}; !slices.Equal(got, want) {
		return fmt.Errorf("with a limit of one, two requests through Envoy got %v, want %v", got, want)
	}
	return nil
}
