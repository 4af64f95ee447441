package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/ratelimitd/ratelimitd/internal/cli"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
)

// serve serves until a signal or ctx ends it.
func serve(ctx context.Context, p cli.Process, is cli.Served) error {
	s, notices, err := settings.Parse(p.Environ)
	if err != nil {
		return err
	}
	log := server.NewLogger(p.Stderr, s)
	for _, notice := range notices {
		log.Warn("a setting is ignored or adjusted", "notice", notice)
	}
	if p.Env("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		collecting, end := context.WithCancel(ctx)
		defer end()
		go collectWhenIdle(collecting)
	}
	limitMemory(p, log, memlimit.FromCgroup)
	v, err := server.New(ctx, s, server.Config{
		Log: log, Audit: server.NewAuditLogger(p.Stderr, s), Stdout: p.Stdout, Command: is.Command, Pod: podName(p), Release: is.Release,
	})
	if err != nil {
		return err
	}
	return untilSignal(ctx, v)
}

// podName returns the name of the pod that this process runs in; empty outside Kubernetes.
func podName(p cli.Process) string {
	if p.Env("KUBERNETES_SERVICE_HOST") == "" {
		return ""
	}
	name, _ := os.Hostname() // without one it is as outside Kubernetes
	return name
}

// gcPercent is in force unless GOGC says otherwise. Requests produce mostly garbage, so the collector takes less processor time
// than with Go's 100. With 400 a call took 3 % less of it, and a million counters 513 MB instead of 331.
const gcPercent = 200

// idleLook is how often [collectWhenIdle] looks.
const idleLook = 10 * time.Second

// collectWhenIdle collects garbage once Go has stopped to, until ctx ends, so that memory goes back to the system soon after a
// peak. An idle server does not fill the heap that a peak has left, and Go would wait for two minutes.
func collectWhenIdle(ctx context.Context) {
	ticker := time.NewTicker(idleLook)
	defer ticker.Stop()
	var stats debug.GCStats
	var seen, done int64 // how many collections there were, at the last look and after those made here
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		debug.ReadGCStats(&stats)
		if stats.NumGC == seen && seen != done {
			runtime.GC()
			runtime.GC() // what pools hold lives through one
			debug.ReadGCStats(&stats)
			done = stats.NumGC
		}
		seen = stats.NumGC
	}
}

// memoryShare is the share of the memory limit that the garbage collector gets. The rest is for what Go does not manage,
// such as the binary and what the kernel keeps for the connections.
const memoryShare = 0.9

// limitMemory limits the garbage collector to its share of what limit returns, so that it works harder before the kernel
// kills the process, unless GOMEMLIMIT sets a limit.
//
// It uses memlimit's providers, not memlimit.Set, which would read the environment a second time and take orders from a
// variable of its own.
func limitMemory(p cli.Process, log *slog.Logger, limit memlimit.Provider) {
	if p.Env("GOMEMLIMIT") != "" {
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
		log.Warn("cannot determine this process's memory limit, so the garbage collector has no limit; set GOMEMLIMIT", "error", err)
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
				signal.Stop(ends) // before it shows that this server is ending, and send the second one
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
