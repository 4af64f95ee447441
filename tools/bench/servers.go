package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// bestSettings are the variables with which envoyproxy/ratelimit uses the least processor time.
const bestSettings = "LOCAL_CACHE_SIZE_IN_BYTES=67108864 REDIS_PIPELINE_WINDOW=150us DISABLE_STATS=true LOG_LEVEL=error GOGC=400"

// watched is a server under load, with its Redis or nil.
type watched struct {
	name          string
	server, redis *process
	load          string // processor for the load, or empty

	// Envoy in front of the server, and its listener for the load; nil and empty if the load calls the server directly.
	envoy    *process
	listener string
}

// servers are the servers to load. They run all the time, so that all have the same conditions.
type servers struct {
	c      config
	dir    string
	stderr io.Writer
	ports  proc.Ports

	// Processors of the servers and the load; empty means any.
	processors, load string

	idle, tuned, memory, leasing, exact, peer, redis *process

	// Envoy's upstream is upstream, and it has a listener for each of through.
	envoy    *process
	upstream net.Listener
	through  []watched
}

// start starts the servers for rows that are not running yet. Rows through Envoy are not mixed with others.
func (s *servers) start(ctx context.Context, rows []row) (err error) {
	if len(rows) > 0 && rows[0].part == throughEnvoy {
		return s.startThrough(ctx)
	}
	if s.idle == nil && s.processors == "" {
		if s.idle, err = s.startIdle(ctx, nil); err != nil {
			return err
		}
		if s.tuned, err = s.startIdle(ctx, []string{"-tuned"}, "GOGC=200"); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if err := s.startFor(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// startFor starts the servers for a row.
func (s *servers) startFor(ctx context.Context, r row) (err error) {
	if r.part == many { // they start in each round
		return errors.Join(writeMany(s.dir, r), writeMany(s.dir, r.withFew()))
	}
	if r.store == memory {
		return s.startOne(ctx, &s.memory, s.c.server, "ours", "BACKEND_TYPE=memory")
	}
	if s.redis == nil {
		if s.redis, err = s.startRedis(ctx); err != nil {
			return err
		}
	}
	store := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + s.redis.addr}
	if s.c.peer != "" {
		if err := s.startOne(ctx, &s.peer, s.c.peer, peer, append(store, strings.Fields(s.c.peerEnv)...)...); err != nil {
			return err
		}
	}
	if r.part != overloads { // overloads keep Envoy's timeout
		store = append(store, "REDIS_OP_TIMEOUT=1s")
	}
	if r.store == exact {
		return s.startOne(ctx, &s.exact, s.c.server, "ours", append(store, "NEAR_CACHE_LEASES=false")...)
	}
	return s.startOne(ctx, &s.leasing, s.c.server, "ours", store...)
}

// startOne starts a server unless it is running.
func (s *servers) startOne(ctx context.Context, p **process, path, whose string, env ...string) (err error) {
	if *p == nil {
		*p, err = s.startServer(ctx, path, filepath.Join(s.dir, whose), env...)
	}
	return err
}

// of returns the servers of a row.
func (s *servers) of(r row) (all []watched) {
	if r.part == throughEnvoy {
		return s.through
	}
	if s.idle != nil && (r.part != rates || r.store == memory) { // one curve of the idle server suffices
		all = append(all, watched{name: idleServer, server: s.idle, load: s.load})
	}
	if s.tuned != nil && r.store == memory && (r.part == costs || r.part == connections) {
		all = append(all, watched{name: tunedIdle, server: s.tuned, load: s.load})
	}
	switch r.store {
	case memory:
		return append(all, watched{name: ratelimitd, server: s.memory, load: s.load})
	case redis:
		all = append(all, watched{name: ratelimitd, server: s.leasing, redis: s.redis, load: s.load})
	case exact:
		all = append(all, watched{name: ratelimitd, server: s.exact, redis: s.redis, load: s.load})
	}
	if s.peer != nil {
		all = append(all, watched{name: peer, server: s.peer, redis: s.redis, load: s.load})
	}
	return all
}

func (s *servers) stop() {
	all := []*process{s.envoy, s.idle, s.tuned, s.memory, s.leasing, s.exact, s.peer}
	for _, w := range s.through {
		all = append(all, w.server)
	}
	if s.upstream != nil {
		_ = s.upstream.Close()
	}
	for _, p := range append(all, s.redis) {
		if p != nil {
			_, _ = p.Stop() // it may have ended, or never started
		}
	}
}

// writeRules writes the rules for ratelimitd and for another server to the directories that startServer uses.
func writeRules(dir string) error {
	for domain, text := range map[string]string{"bench": rules, "overload": overloadRules, "check": checkRules} {
		for whose, text := range map[string]string{"ours": text, peer: peerRules(text)} {
			path := filepath.Join(dir, whose, "config")
			if err := os.MkdirAll(path, 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(path, domain+".yaml"), []byte(text), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
