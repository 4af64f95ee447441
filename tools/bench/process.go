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
	p := &process{Server: &proc.Server{Program: program, Processors: s.processors, Stderr: s.stderr}}
	at, err := p.Serves(ctx, &s.ports, rules, env...)
	if err != nil {
		return nil, err
	}
	p.Env = append(os.Environ(), p.Env...) // the environment of this process may contain further settings
	p.addr, p.debug = at.GRPC, at.Debug
	return p, p.Start(ctx)
}

// freeAddr returns a free address of this machine and its port.
func (s *servers) freeAddr(ctx context.Context) (addr, port string, err error) {
	port, err = s.ports.Free(ctx)
	return net.JoinHostPort("127.0.0.1", port), port, err
}
