package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"google.golang.org/grpc/metadata"
)

// planted is the prefix of each secret. A number follows.
const planted = "planted"

// plan is a server configuration with secrets.
type plan struct {
	name string
	vars []string
}

// plans returns configurations with different secrets in every form of URL and every variable that accepts one. addr is the
// address of a Redis; n is the number of secrets.
func plans(addr string) (all []plan, n int) {
	secret := func() string { n++; return fmt.Sprintf("%s%02d", planted, n) }
	url := func(form string, vars ...string) {
		for strings.Contains(form, "SECRET") {
			form = strings.Replace(form, "SECRET", secret(), 1)
		}
		form = strings.ReplaceAll(form, "ADDR", addr)
		all = append(all, plan{form, append(vars, "REDIS_URL="+form)})
	}
	url("redis://:SECRET@ADDR/0")
	url("redis://user:SECRET@ADDR")
	url("redis://SECRET@ADDR")
	url("redis://ADDR?password=SECRET")
	url("redis://ADDR/1?username=SECRET&password=SECRET")
	url("rediss://:SECRET@ADDR")
	url("unix://user:SECRET@/nowhere.sock")
	url("unix:///nowhere.sock?password=SECRET")
	url("redis://:SECRET@nowhere.invalid:6379")
	url("redis://:SECRET@ADDR/notanumber")
	url("redis://:SECRET%zz@ADDR")
	url("redis://:SECRET@ADDR:port")
	url("user:SECRET@ADDR")
	url(":SECRET@ADDR")
	url("SECRET@ADDR")
	url("http://user:SECRET@ADDR")
	url("redis://:SECRET@ADDR,redis://:SECRET@ADDR", "REDIS_TYPE=cluster")
	url("mymaster,redis://:SECRET@ADDR", "REDIS_TYPE=sentinel")
	add := func(vars ...string) {
		all = append(all, plan{vars[0], append(vars, "REDIS_URL="+addr)})
	}
	add("REDIS_AUTH=" + secret())
	add("REDIS_AUTH=user:" + secret())
	add("REDIS_PERSECOND_AUTH="+secret(), "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL=redis://:"+secret()+"@"+addr)
	all = append(all, plan{"REDIS_SENTINEL_AUTH", []string{"REDIS_SENTINEL_AUTH=" + secret(), "REDIS_TYPE=sentinel", "REDIS_URL=mymaster," + addr}})
	add("OTEL_EXPORTER_OTLP_ENDPOINT=http://user:"+secret()+"@127.0.0.1:1", "TRACING_ENABLED=true")
	add("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:"+secret(), "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1")
	return all, n
}

// secrets plants secrets and searches for them in all output of servers.
func secrets(ctx context.Context, e *env) {
	r := e.redis(ctx)
	all, n := plans(r.addr)
	found := make([]string, len(all)+1)
	const inCalls, atOnce = 8, 6 // secrets; concurrent servers
	servers := []func(){func() { found[len(all)] = secretsOfCalls(ctx, e, r.addr) }}
	turns := make(chan struct{}, atOnce)
	for i, p := range all {
		servers = append(servers, func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			found[i] = p.tells(ctx, e)
		})
	}
	e.together(servers...)
	told := secretsIn(strings.Join(found, "\n"))
	e.measured(len(told) == 0, "%d of %d secrets shown%s", len(told), n+inCalls, prefixed(strings.Join(told, " ")))
}

// secretsIn returns the distinct secrets in a text.
func secretsIn(text string) []string {
	all := regexp.MustCompile(planted+`(\d\d|[A-H])`).FindAllString(text, -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// tells starts a server with secrets, and returns all its output: its log at level trace, its pages, its errors, and its
// goroutine dump.
func (p plan) tells(ctx context.Context, e *env) string {
	s := e.server(ctx, endless, append([]string{"LOG_LEVEL=trace"}, p.vars...)...)
	said := s.says(ctx, nil)
	for _, x := range secretsIn(said) {
		e.note("%s is told of %s", x, regexp.MustCompile(planted+`\d+`).ReplaceAllString(p.name, "…"))
		for line := range strings.Lines(said) {
			if strings.Contains(line, x) {
				e.note("    %s", strings.TrimSpace(line))
			}
		}
	}
	return said
}

// says starts and calls a server, and returns all its output until a goroutine dump ends it.
func (s *server) says(ctx context.Context, more func() string) string {
	s.Ready = proc.Listens(s.GRPC)
	s.e.must(s.Launch())
	most := patience
	if s.e.other { // it may wait for its backend indefinitely
		most = 3 * time.Second
	}
	_, _ = poll(ctx, most, func() bool { return s.Over() || proc.Listens(s.GRPC)(ctx) == nil && proc.Listens(s.HTTP)(ctx) == nil })
	var told strings.Builder
	if !s.Over() {
		c := s.rls()
		once, cancel := context.WithTimeout(ctx, time.Second)
		_, err := c.ShouldRateLimit(once, ask("shop", "user=a"))
		cancel()
		fmt.Fprintln(&told, err)
		_ = sleep(ctx, 200*time.Millisecond) // until the server has tried to connect
		if more != nil {
			told.WriteString(more())
		}
		for _, url := range []string{
			s.HTTP + "/healthcheck?verbose", s.HTTP + "/readyz",
			s.Debug + "/metrics", s.Debug + "/stats", s.Debug + "/rlconfig?verbose", s.Debug + "/",
		} {
			page, _ := proc.Get(ctx, "http://"+url)
			told.WriteString(page)
		}
		_, err = s.End(syscall.SIGQUIT)
		s.e.must(err)
	}
	log, err := os.ReadFile(s.log)
	s.e.must(err)
	return told.String() + string(log)
}

// secretsOfCalls sends secrets in calls, with tracing, statistics, and the admin API on, and returns everything that the server
// shows to others.
func secretsOfCalls(ctx context.Context, e *env, addr string) string {
	var mu sync.Mutex
	var sent strings.Builder                          // to the collector and statsd
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // does not block
	e.must(err)
	collector := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		_, _ = sent.Write(text)
	})}
	go func() { _ = collector.Serve(listener) }()
	e.atEnd(func() { _ = collector.Close() })
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // does not block
	e.must(err)
	e.atEnd(func() { _ = statsd.Close() })
	go func() {
		for buf := make([]byte, 64<<10); ; {
			n, _, err := statsd.ReadFrom(buf)
			if err != nil {
				return
			}
			mu.Lock()
			_, _ = sent.Write(buf[:n])
			mu.Unlock()
		}
	}()
	token := e.writeFile("token", []byte(planted+"A\n"))
	_, port, _ := net.SplitHostPort(statsd.LocalAddr().String())
	s := e.server(ctx, endless, "REDIS_URL="+addr, "LOG_LEVEL=trace", "LOG_REJECTED=true", "ADMIN_TOKEN_FILE="+token,
		"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+listener.Addr().String(), "OTEL_EXPORTER_OTLP_HEADERS=authorization="+planted+"B",
		"OTEL_BSP_SCHEDULE_DELAY=100", "USE_STATSD=true", "STATSD_PROTOCOL=udp", "STATSD_PORT="+port, "STATS_FLUSH_INTERVAL=1s")
	said := s.says(ctx, func() string {
		c := s.rls()
		with := metadata.AppendToOutgoingContext(ctx, "authorization", planted+"C")
		_, err := c.ShouldRateLimit(with, ask("shop", "user="+planted+"D"))
		var told strings.Builder
		fmt.Fprint(&told, err)
		for _, text := range []string{
			`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"` + planted + `E"}]}]}`,
			`{"domain":"shop","` + planted + `F":1}`,
		} {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/json?token="+planted+"G", strings.NewReader(text))
			if err != nil {
				continue
			}
			req.Header.Set("Authorization", planted+"H")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				answer, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				told.Write(answer)
			}
		}
		_ = sleep(ctx, 1500*time.Millisecond) // for statistics and traces
		return told.String()
	})
	mu.Lock()
	defer mu.Unlock()
	if !e.other && !strings.Contains(sent.String(), "ShouldRateLimit") {
		e.fail("no traces came")
	}
	for _, x := range secretsIn(said + sent.String()) {
		e.note("%s of a call is told", x)
	}
	return said + sent.String()
}
