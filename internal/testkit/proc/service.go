package proc

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// Addresses are those at which a rate-limit service listens, each a host:port.
type Addresses struct{ GRPC, HTTP, Debug string }

// Serves makes the server, which does not run yet, a ratelimitd, or another service with the same environment variables, on ports of
// 127.0.0.1. It serves the rules in the folder config of a directory, sends no statistics, and ends at once. What env has takes precedence.
func (s *Server) Serves(ctx context.Context, ports *Ports, rules string, env ...string) (a Addresses, err error) {
	s.Env = append([]string{
		"REDIS_SOCKET_TYPE=tcp", "USE_STATSD=false", "DRAIN_DELAY=0s", "RUNTIME_ROOT=" + rules, "RUNTIME_SUBDIRECTORY=",
		"RUNTIME_WATCH_ROOT=false", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"PATH=" + os.Getenv("PATH"), //nolint:forbidigo // of the one that finds this server
	}, env...)
	for name, addr := range map[string]*string{"PORT": &a.HTTP, "GRPC_PORT": &a.GRPC, "DEBUG_PORT": &a.Debug} {
		port, err := ports.Free(ctx)
		if err != nil {
			return a, err
		}
		*addr = net.JoinHostPort("127.0.0.1", port)
		s.Env = append(s.Env, name+"="+port)
	}
	s.Ready = Answers("http://" + a.HTTP + "/healthcheck")
	return a, nil
}

// Get returns the body of a page. A status other than 200 is an error, with the body all the same.
func Get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s", url, resp.Status)
	}
	return string(body), err
}

// Series returns the values of a page of metrics, by name and labels as they are written, such as x_total{a="b"}.
func Series(page string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(page) {
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if x, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err == nil {
			all[line[:i]] = x
		}
	}
	return all
}
