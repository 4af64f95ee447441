package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// server is a rate-limit service with rules of its own.
type server struct {
	*process

	e                 *env
	dir               string // of its rules
	grpc, http, debug string // addresses
}

// server returns a server that is not started yet, with rules and additional variables, such as REDIS_URL. What stands on
// lines of rules that end in #+ only ratelimitd knows: another server does not see them.
func (e *env) server(ctx context.Context, rules string, vars ...string) (*server, error) {
	p, err := e.process("server", e.program)
	if err != nil {
		return nil, err
	}
	s := &server{e: e, process: p}
	if s.dir, err = os.MkdirTemp(e.dir, "rules"); err != nil { // checks may start several at once
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(s.dir, "config"), 0o700); err != nil {
		return nil, err
	}
	if err := s.serve("rules.yaml", rules); err != nil {
		return nil, err
	}
	s.Env = append([]string{
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "USE_STATSD=false", "DRAIN_DELAY=0s", "ADMIN=true", "LOG_LEVEL=warn",
		"RUNTIME_ROOT=" + s.dir, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false", "EXPIRATION_JITTER_MAX_SECONDS=0",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PATH=" + os.Getenv("PATH"), //nolint:forbidigo // of the one that finds this server
	}, vars...)
	for name, addr := range map[string]*string{"PORT": &s.http, "GRPC_PORT": &s.grpc, "DEBUG_PORT": &s.debug} {
		port, err := e.ports.Free(ctx)
		if err != nil {
			return nil, err
		}
		*addr = "127.0.0.1:" + port
		s.Env = append(s.Env, name+"="+port)
	}
	s.Ready = proc.Answers("http://" + s.http + "/healthcheck")
	return s, nil
}

// startServer returns a server that is ready.
func (e *env) startServer(ctx context.Context, rules string, vars ...string) (*server, error) {
	s, err := e.server(ctx, rules, vars...)
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// serve replaces a file of rules at once.
func (s *server) serve(file, rules string) error {
	var kept strings.Builder
	for line := range strings.Lines(rules) {
		if !s.e.other || !strings.HasSuffix(strings.TrimSpace(line), "#+") {
			kept.WriteString(line)
		}
	}
	tmp := filepath.Join(s.dir, file)
	if err := os.WriteFile(tmp, []byte(kept.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(s.dir, "config", file))
}

// dial returns a connection of grpc-go, which ends with the check.
func (s *server) dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	again := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	conn, err := grpc.NewClient(s.grpc, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}),
	}, opts...)...)
	if err == nil {
		s.e.atEnd(func() { _ = conn.Close() })
	}
	return conn, err
}

// rls returns a client of the service.
func (s *server) rls() (rlsv3.RateLimitServiceClient, error) { //nolint:ireturn // what is generated
	conn, err := s.dial()
	return rlsv3.NewRateLimitServiceClient(conn), err
}

// page returns the body of a page, and its status.
func page(ctx context.Context, url string) (body, status string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), resp.Status, err
}

// body returns the body of a page, whatever its status.
func body(ctx context.Context, url string) (string, error) {
	text, _, err := page(ctx, url)
	return text, err
}

// get returns the body of a page; what is not 200 is an error.
func get(ctx context.Context, url string) (string, error) {
	text, status, err := page(ctx, url)
	if err == nil && !strings.HasPrefix(status, strconv.Itoa(http.StatusOK)) {
		err = fmt.Errorf("%s: %s", url, status)
	}
	return text, err
}

// metrics returns the values of all series, by name and labels as they are written, such as x_total{a="b"}.
func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	body, err := get(ctx, "http://"+s.debug+"/metrics")
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if x, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			all[line[:i]] = x
		}
	}
	return all, lines.Err()
}

// metric returns the sum of the series of a name.
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

// health calls /healthcheck, and /livez where there is one, every 100 ms until the returned function is called, which
// returns how many calls failed or took more than a second, of how many.
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
				if _, err := get(once, "http://"+s.http+page); err != nil {
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
