package main

import (
	"context"
	"net"
	"os"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// process is a running server.
type process struct {
	*proc.Server

	addr  string // serving address
	debug string // address of the debug listener, if any
}

// startIdle starts the idle server with additional arguments and variables.
func (s *servers) startIdle(ctx context.Context, args []string, env ...string) (*process, error) {
	addr, _, err := s.freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{addr: addr}
	p.Server = &proc.Server{Program: s.c.idle, Args: append(args, addr), Env: append(os.Environ(), env...), Stderr: s.stderr, Ready: proc.Listens(addr)}
	return p, p.Start(ctx)
}

// startRedis starts a redis-server without persistence.
func (s *servers) startRedis(ctx context.Context) (*process, error) {
	addr, port, err := s.freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{addr: addr}
	p.Server = &proc.Server{
		Program: s.c.redis, Args: []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", s.dir},
		Processors: s.processors, Stderr: s.stderr, Ready: proc.Listens(addr),
	}
	return p, p.Start(ctx)
}

// startServer starts ratelimitd, or a server with the same variables, with the rules in a directory and additional
// variables.
func (s *servers) startServer(ctx context.Context, program, rules string, env ...string) (*process, error) {
	env = append(append(os.Environ(),
		"USE_STATSD=false", "DRAIN_DELAY=0s",
		"RUNTIME_ROOT="+rules, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
	), env...)
	addrs := map[string]string{}
	for _, name := range []string{"PORT", "GRPC_PORT", "DEBUG_PORT"} {
		addr, port, err := s.freeAddr(ctx)
		if err != nil {
			return nil, err
		}
		addrs[name] = addr
		env = append(env, name+"="+port)
	}
	p := &process{addr: addrs["GRPC_PORT"], debug: addrs["DEBUG_PORT"]}
	p.Server = &proc.Server{
		Program: program, Env: env, Processors: s.processors, Stderr: s.stderr, Ready: proc.Answers("http://" + addrs["PORT"] + "/healthcheck"),
	}
	return p, p.Start(ctx)
}

// freeAddr returns a free address of this machine and its port.
func (s *servers) freeAddr(ctx context.Context) (addr, port string, err error) {
	port, err = s.ports.Free(ctx)
	return net.JoinHostPort("127.0.0.1", port), port, err
}
