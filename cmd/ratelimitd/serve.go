package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/settings"
)

func (p *program) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Serve; this is what ratelimitd does without a command",
		Long: `Serve answers Envoy on GRPC_PORT (8081), /json and health pages on PORT (8080), and pages for
operators on DEBUG_PORT (6070). All settings are environment variables, which are listed in
https://github.com/ratelimitd/ratelimitd/blob/main/docs/settings.md.

Counters live in Redis, at REDIS_URL, or with BACKEND_TYPE=memory in this process. Where neither
is set, Redis is looked for at the unix socket that is envoyproxy/ratelimit's default. It starts
even if Redis cannot be reached, and does what on_failure says until it can.

It also starts without valid rules, says what is wrong with them, and is not healthy until it has
some. Rules are loaded again when their files change, and on SIGHUP. On SIGTERM and SIGINT it
turns unhealthy, keeps serving for DRAIN_DELAY, finishes what runs, and exits with 0; a second signal
ends it at once.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=127.0.0.1:6379 RUNTIME_ROOT=config RUNTIME_APPDIRECTORY=example ratelimitd serve
  BACKEND_TYPE=memory RUNTIME_ROOT=config RUNTIME_APPDIRECTORY=example ratelimitd serve
  BACKEND_TYPE=memory PORT=9080 LOG_LEVEL=info LOG_FORMAT=json ratelimitd serve`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) },
	}
}

// serve serves until a signal or ctx ends it.
func (p *program) serve(ctx context.Context) error {
	s, notices, err := settings.Parse(p.environ)
	if err != nil {
		return err
	}
	log := server.NewLogger(p.stderr, s)
	for _, notice := range notices {
		log.Warn("note on a setting", "notice", notice)
	}
	tighten := func(bool) {} // GOGC says how large the heap may be
	if p.env("GOGC") == "" {
		c := new(collector)
		tighten = c.amidGarbage
		collecting, end := context.WithCancel(ctx)
		defer end()
		c.afterEach(collecting)
		go c.whenQuiet(collecting)
	}
	p.limitMemory(log, memlimit.FromCgroup)
	v, err := server.New(ctx, s, server.Config{Log: log, Audit: server.NewAuditLogger(p.stderr, s), Stdout: p.stdout, Command: p.command(), Release: release(), Garbage: tighten})
	if err != nil {
		return err
	}
	return untilSignal(ctx, v)
}

// command returns the name under which this program takes commands: started as ratelimit it takes none, but is
// installed next to it as ratelimitd too.
func (p *program) command() string {
	if dir, base := filepath.Split(p.name); base == referenceServer {
		return dir + "ratelimitd"
	}
	return p.name
}

// memoryShare is the share of the memory limit that the garbage collector gets. The rest is for what Go does not manage,
// such as the binary and what the kernel keeps for the connections.
const memoryShare = 0.9

// limitMemory limits the garbage collector to its share of what limit returns, so that it works harder before the kernel
// kills the process, unless GOMEMLIMIT sets a limit.
//
// It uses memlimit's providers, not memlimit.Set, which would read the environment a second time and take orders from a
// variable of its own.
func (p *program) limitMemory(log *slog.Logger, limit memlimit.Provider) {
	if p.env("GOMEMLIMIT") != "" {
		return
	}
	share, err := memlimit.ApplyRatio(limit, memoryShare)()
	switch {
	case err == nil:
		share = min(share, math.MaxInt64)
		debug.SetMemoryLimit(int64(share))
		log.Info("memory is limited, so the garbage collector stays within nine tenths of the limit", "gomemlimit", share)
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	default:
		log.Warn("cannot find out this process's memory limit, so the garbage collector has none; set GOMEMLIMIT to give it one", "error", err)
	}
}

// untilSignal runs v until SIGINT, SIGTERM or ctx ends it. A second signal ends the process at once. SIGHUP reloads the
// rules.
func untilSignal(ctx context.Context, v *server.Server) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	ends, again := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(ends)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-ends:
				signal.Stop(ends) // before anybody can see that this server is ending, and send the second one
				end()
				select {
				case second := <-ends: // which has come already
					raise(second)
				default:
				}
			case <-again:
				v.Reload()
			case <-done:
				return
			}
		}
	}()
	return v.Run(ctx)
}

// raise sends sig to this process, which no longer handles it and so ends.
func raise(sig os.Signal) {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Signal(sig) // if that fails, the process drains and ends
	}
}
