package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// announce reports the backend, the rules and the listen addresses once the rules are loaded: on stdout, or as one log line if
// the log format is JSON. It returns when ctx ends.
func (v *Server) announce(ctx context.Context) error {
	select {
	case <-v.watcher.First(): // without a timeout
	case <-ctx.Done():
		return nil
	}
	task.Await(ctx, storeKnown, v.store.Tried())
	if v.settings.Log.Format == "json" {
		attrs := []any{
			"version", v.version(), "backend", v.settings.Backend.Type, "grpc", v.listeners.grpc.Addr().String(),
			"http", v.listeners.http.Addr().String(), "debug", v.listeners.debug.Addr().String(),
		}
		if path := v.adminSocket(); path != "" {
			attrs = append(attrs, "admin", path)
		}
		if why := v.store.Disconnected(); why != "" {
			attrs = append(attrs, "away", why)
		}
		v.log.InfoContext(ctx, "serving", attrs...)
	} else {
		_, _ = io.WriteString(v.config.Stdout, v.banner()) // a failed write cannot be reported
	}
	<-ctx.Done()
	return nil
}

// version returns the release and the Go version.
func (v *Server) version() string { return v.config.Release + " " + runtime.Version() }

// storeKnown bounds how long announce waits for the first connection to the backend.
const storeKnown = 5 * time.Second

// banner returns the startup message for stdout.
func (v *Server) banner() string {
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-8s "+format+"\n", append([]any{what}, args...)...)
	}
	fmt.Fprintf(&b, "ratelimitd %s\n", v.version())
	line("backend", "%s", v.store.what)
	if why := v.store.Disconnected(); why != "" {
		line("", "unreachable: %s; until it can be reached, on_failure decides (%s, unless the rule sets it)", why, strings.ToLower(v.settings.Backend.OnFailure))
	}
	set := v.limiter.Rules()
	if set == nil {
		line("rules", "none: %s", v.rules.why())
	} else {
		rules := 0
		for range set.Rules() {
			rules++
		}
		line("rules", "%s from %s", descriptors.CountText(rules, "rule"), v.origin(len(set.Files())))
	}
	line("gRPC", "%s", v.listeners.grpc.Addr())
	if path := v.adminSocket(); path != "" {
		line("admin", "%s  ratelimitd top, block, lift and more, as this user", path)
	}
	line("HTTP", "%s  /json /healthcheck /livez /readyz", v.listeners.http.Addr())
	pages := "/rlconfig /stats /metrics /debug/pprof/"
	if v.console != nil {
		pages += " /ui/"
	}
	if v.settings.Debug.TLS {
		pages = "(TLS) " + pages
	}
	line("debug", "%s  %s", v.listeners.debug.Addr(), pages)
	if v.listeners.prometheus != nil {
		line("metrics", "%s  %s", v.listeners.prometheus.Addr(), v.settings.Stats.PrometheusPath)
	}
	if set != nil {
		b.WriteString(v.paste(set))
	}
	return b.String()
}

// paste returns two example commands. Both send a descriptor that matches a rule of set.
func (v *Server) paste(set *descriptors.Set) string {
	domain, entries := example(set)
	if entries == nil {
		return ""
	}
	var pairs, objects []string
	for _, e := range entries {
		pairs = append(pairs, fmt.Sprintf("%s=%s", e.Key, e.Value))
		objects = append(objects, fmt.Sprintf(`{"key":%q,"value":%q}`, e.Key, e.Value))
	}
	body := fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[%s]}]}`, domain, strings.Join(objects, ","))
	addr := ""
	if at := v.listeners.grpc.Addr(); at.Network() == "unix" {
		addr = "--addr " + plain.Word("unix:"+at.String()) + " "
	} else if host := reachable(at); host != "127.0.0.1:8081" {
		addr = "--addr " + host + " "
	}
	if v.settings.GRPC.UseTLS {
		if v.settings.GRPC.ClientCA != "" {
			addr = "--cert FILE --key FILE " + addr
		}
		addr = "--tls " + addr
	}
	return fmt.Sprintf("\nTry, as often as you like:\n"+
		"  curl -s http://%s/json -d %s\n"+
		"  %s call %s%s %s\n",
		reachable(v.listeners.http.Addr()), plain.Word(body), plain.Word(v.config.Command), addr, plain.Word(domain), plain.Word(strings.Join(pairs, ",")))
}

// reachable returns the address under which this machine reaches a listener on at.
func reachable(at net.Addr) string {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return at.String()
	}
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, fmt.Sprint(tcp.Port))
}

// example returns a descriptor that matches a rule of the set. It takes the first one without characters that are special in JSON
// or in the descriptor syntax.
func example(set *descriptors.Set) (domain string, entries []descriptors.Entry) {
	for d := range set.Domains() {
		for r := range set.Rules() {
			path, ok := strings.CutPrefix(r.Path, d.Name+".")
			said := plain.Text(d.Name) == d.Name && !strings.ContainsAny(d.Name, `"\`) && plain.IsWord(strings.ReplaceAll(path, "*", "")) && !strings.ContainsAny(path, ",=")
			if !ok || r.Unlimited || !said {
				continue
			}
			if entries := r.Example("ann"); d.Match(entries).Rule == r {
				return d.Name, entries
			}
		}
	}
	return "", nil
}
