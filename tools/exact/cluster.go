package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// cluster is the servers of a campaign.
type cluster struct {
	config config
	redis  *proc.Server
	addr   string // of redis
	ports  proc.Ports
	all    []*replica
	dir    string
}

// replica is a ratelimitd with rules of its own.
type replica struct {
	*proc.Server

	conn     *grpc.ClientConn
	operator *grpc.ClientConn // on the admin socket
	rls      rlsv3.RateLimitServiceClient
	admin    adminv1.AdminServiceClient
	dir      string // of its rules
	debug    string // address of its debug listener
}

// newCluster starts an empty Redis, with arguments beside the usual ones.
func newCluster(ctx context.Context, c config, dir string) (*cluster, error) {
	cl := &cluster{config: c, dir: dir}
	port, err := cl.ports.Free(ctx)
	if err != nil {
		return nil, err
	}
	cl.addr = "127.0.0.1:" + port
	cl.redis = &proc.Server{
		Program: c.redis,
		Args:    []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir},
		Ready:   proc.Listens(cl.addr),
	}
	return cl, cl.redis.Start(ctx)
}

// add starts a replica that serves rules, each a file by the name of its domain.
func (cl *cluster) add(ctx context.Context, rules map[string]string, env ...string) (*replica, error) {
	r := &replica{dir: filepath.Join(cl.dir, fmt.Sprintf("replica%d", len(cl.all)+1))}
	if err := os.MkdirAll(filepath.Join(r.dir, "config"), 0o700); err != nil {
		return nil, err
	}
	for domain, yaml := range rules {
		if err := r.serve(domain, yaml); err != nil {
			return nil, err
		}
	}
	env = append([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + cl.addr, "USE_STATSD=false", "DRAIN_DELAY=0s", "ADMIN=true", "DECISION_METADATA=true",
		"RUNTIME_ROOT=" + r.dir, "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=error", "EXPIRATION_JITTER_MAX_SECONDS=0",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
	}, env...)
	addrs := map[string]string{}
	for _, name := range []string{"PORT", "GRPC_PORT", "DEBUG_PORT"} {
		port, err := cl.ports.Free(ctx)
		if err != nil {
			return nil, err
		}
		addrs[name] = "127.0.0.1:" + port
		env = append(env, name+"="+port)
	}
	socket := filepath.Join(r.dir, "admin.sock")
	env = append(env, "ADMIN_SOCKET="+socket)
	r.debug = addrs["DEBUG_PORT"]
	r.Server = &proc.Server{Program: cl.config.server, Env: env, Stderr: cl.config.stderr, Ready: proc.Answers("http://" + addrs["PORT"] + "/healthcheck")}
	if err := r.dial(addrs["GRPC_PORT"], socket); err != nil {
		return nil, err
	}
	cl.all = append(cl.all, r)
	return r, r.Start(ctx)
}

// dial connects to the ports of a replica, lazily.
func (r *replica) dial(addr, socket string) (err error) {
	again := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}),
	}
	if r.conn, err = grpc.NewClient(addr, options...); err != nil {
		return err
	}
	if r.operator, err = grpc.NewClient("unix:"+socket, options...); err != nil {
		return err
	}
	r.rls, r.admin = rlsv3.NewRateLimitServiceClient(r.conn), adminv1.NewAdminServiceClient(r.operator)
	return nil
}

// serve replaces the rules of a domain.
func (r *replica) serve(domain, yaml string) error {
	file := filepath.Join(r.dir, domain)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return err
	}
	return os.Rename(file, filepath.Join(r.dir, "config", domain+".yaml"))
}

func get(ctx context.Context, url string) (string, error) {
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
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}

// leases is what a replica says about its leases, in hits.
type leases struct{ leased, spent, returned, full, unspent int64 }

// held is what is leased still.
func (l leases) held() int64 { return l.leased - l.spent - l.returned - l.full - l.unspent }

func (r *replica) leases(ctx context.Context) (l leases, err error) {
	body, err := get(ctx, "http://"+r.debug+"/metrics")
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, found := strings.CutPrefix(name, "ratelimitd_near_cache_")
		if !found {
			continue
		}
		var x float64
		if _, err := fmt.Sscan(value, &x); err != nil {
			return l, fmt.Errorf("reading %s: %w", line, err)
		}
		switch strings.TrimSuffix(name, "_total") {
		case "leased":
			l.leased = int64(x)
		case "spent":
			l.spent = int64(x)
		case "returned":
			l.returned = int64(x)
		case "full":
			l.full = int64(x)
		case "unspent":
			l.unspent = int64(x)
		}
	}
	return l, nil
}

// stop ends all servers, and waits for them.
func (cl *cluster) stop() {
	for _, r := range cl.all {
		_, _ = r.conn.Close(), r.operator.Close()
		r.Kill()
	}
	cl.redis.Kill()
}
