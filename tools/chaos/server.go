package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// server is a rate-limit service with its rules.
type server struct {
	*process

	proc.Addresses

	dir string // directory of its rules
}

// server returns a server that is not started, with rules and additional variables, such as REDIS_URL. Lines of rules that end in
// #+ are extensions, which other servers do not get.
func (e *env) server(ctx context.Context, rules string, vars ...string) *server {
	dir, err := os.MkdirTemp(e.dir, "rules") // checks may start several servers concurrently
	e.must(err)
	s := &server{process: e.process("server", e.program), dir: dir}
	e.must(os.Mkdir(filepath.Join(s.dir, "config"), 0o700))
	s.serve("rules.yaml", rules)
	vars = append([]string{"BACKEND_TYPE=redis", "ADMIN=true", "LOG_LEVEL=warn", "EXPIRATION_JITTER_MAX_SECONDS=0"}, vars...)
	s.Addresses, err = s.Serves(ctx, &e.ports, dir, vars...)
	e.must(err)
	return s
}

// startServer starts a server and waits until it is ready.
func (e *env) startServer(ctx context.Context, rules string, vars ...string) *server {
	s := e.server(ctx, rules, vars...)
	e.must(s.Start(ctx))
	return s
}

// startServers starts n servers and waits until they are ready.
func (e *env) startServers(ctx context.Context, n int, rules string, vars ...string) (all []*server) {
	for range n {
		all = append(all, e.startServer(ctx, rules, vars...))
	}
	return all
}

// serve atomically replaces a file of rules.
func (s *server) serve(file, rules string) {
	var kept strings.Builder
	for line := range strings.Lines(rules) {
		if !s.e.other || !strings.HasSuffix(strings.TrimSpace(line), "#+") {
			kept.WriteString(line)
		}
	}
	tmp := filepath.Join(s.dir, file)
	s.e.must(os.WriteFile(tmp, []byte(kept.String()), 0o600))
	s.e.must(os.Rename(tmp, filepath.Join(s.dir, "config", file)))
}

// dial returns a grpc-go connection, which closes at the end of the check.
func (s *server) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	again := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	conn, err := grpc.NewClient(s.GRPC, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}),
	}, opts...)...)
	s.e.must(err)
	s.e.atEnd(func() { _ = conn.Close() })
	return conn
}

// rls returns a client of the service.
func (s *server) rls() rlsv3.RateLimitServiceClient { //nolint:ireturn // generated type
	return rlsv3.NewRateLimitServiceClient(s.dial())
}

// metrics returns the values of all series; see [proc.Series].
func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	page, err := proc.Get(ctx, "http://"+s.Debug+"/metrics")
	return proc.Series(page), err
}

// metric returns the sum over the series of a metric.
func (s *server) metric(ctx context.Context, name string) float64 {
	all, err := s.metrics(ctx)
	if err != nil {
		return -1
	}
	sum := 0.0
	for series, x := range all {
		if series == name || strings.HasPrefix(series, name+"{") {
			sum += x
		}
	}
	return sum
}

// health calls /healthcheck, and ratelimitd's /livez, every 100 ms until the returned function is called. That returns the number
// of calls that failed or took more than a second, and of all calls.
func (s *server) health(ctx context.Context) func() (failed, all int) {
	ctx, cancel := context.WithCancel(ctx)
	pages := []string{"/healthcheck", "/livez"}
	if s.e.other {
		pages = pages[:1]
	}
	type tally struct{ failed, all int }
	done := make(chan tally)
	go func() {
		var n tally
		for sleep(ctx, 100*time.Millisecond) == nil {
			for _, page := range pages {
				once, end := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				if _, err := proc.Get(once, "http://"+s.HTTP+page); err != nil {
					s.e.note("health: %v", err)
					n.failed++
				}
				end()
				n.all++
			}
		}
		done <- n
	}()
	return func() (int, int) { cancel(); n := <-done; return n.failed, n.all }
}
