package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	addr   string // address of redis
	ports  proc.Ports
	all    []*replica
	dir    string
}

// replica is a ratelimitd with its rules.
type replica struct {
	*proc.Server
	proc.Addresses

	conn     *grpc.ClientConn
	operator *grpc.ClientConn // on the admin socket
	rls      rlsv3.RateLimitServiceClient
	admin    adminv1.AdminServiceClient
	dir      string // directory of the rules
}

// newCluster starts an empty Redis.
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

// add starts a replica with rules by domain.
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
	socket := filepath.Join(r.dir, "admin.sock")
	env = append([]string{
		"REDIS_URL=" + cl.addr, "ADMIN=true", "ADMIN_SOCKET=" + socket, "DECISION_METADATA=true", "LOG_LEVEL=error",
		"EXPIRATION_JITTER_MAX_SECONDS=0",
	}, env...)
	r.Server = &proc.Server{Program: cl.config.server, Stderr: cl.config.stderr}
	var err error
	if r.Addresses, err = r.Serves(ctx, &cl.ports, r.dir, env...); err != nil {
		return nil, err
	}
	if err := r.dial(r.GRPC, socket); err != nil {
		return nil, err
	}
	cl.all = append(cl.all, r)
	return r, r.Start(ctx)
}

// dial creates lazy connections to a replica.
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

// leases has a replica's lease metrics, in hits.
type leases struct{ leased, spent, returned, full, unspent int64 }

// held returns the leased hits that are still unspent.
func (l leases) held() int64 { return l.leased - l.spent - l.returned - l.full - l.unspent }

func (r *replica) leases(ctx context.Context) (leases, error) {
	page, err := proc.Get(ctx, "http://"+r.Debug+"/metrics")
	all := proc.Series(page)
	of := func(name string) int64 { return int64(all["ratelimitd_near_cache_"+name+"_total"]) }
	return leases{of("leased"), of("spent"), of("returned"), of("full"), of("unspent")}, err
}

// stop kills all servers.
func (cl *cluster) stop() {
	for _, r := range cl.all {
		_, _ = r.conn.Close(), r.operator.Close()
		r.Kill()
	}
	cl.redis.Kill()
}
