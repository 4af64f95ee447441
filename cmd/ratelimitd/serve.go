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

// serve runs the server until a signal arrives or ctx ends.
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

// podName returns the name of the pod of this process, or "" outside Kubernetes.
func podName(p cli.Process) string {
	if p.Env("KUBERNETES_SERVICE_HOST") == "" {
		return ""
	}
	name, _ := os.Hostname() // an error counts as no pod
	return name
}

// gcPercent applies unless GOGC is set. Most allocations are garbage soon, so collecting less often than with Go's default of
// 100 saves processor time. 400 would save another 3 % per call, but a million counters would take 513 MB instead of 331.
const gcPercent = 200

// idleLook is the interval at which [collectWhenIdle] compares collection counts.
const idleLook = 10 * time.Second

// collectWhenIdle forces a garbage collection once Go has stopped collecting, until ctx ends. This returns memory to the
// system soon after a peak: an idle server never fills the heap that the peak left behind, and Go itself waits for two
// minutes.
func collectWhenIdle(ctx context.Context) {
	ticker := time.NewTicker(idleLook)
	defer ticker.Stop()
	var stats debug.GCStats
	var seen, done int64 // numbers of collections: at the last tick, and after the last forced one
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		debug.ReadGCStats(&stats)
		if stats.NumGC == seen && seen != done {
			runtime.GC()
			runtime.GC() // a sync.Pool keeps its objects for one collection
			debug.ReadGCStats(&stats)
			done = stats.NumGC
		}
		seen = stats.NumGC
	}
}

// memoryShare is the share of the memory limit that the Go heap may use. The rest holds the binary, the kernel's buffers
// of connections, and other memory that Go does not manage.
const memoryShare = 0.9

// limitMemory sets Go's memory limit to [memoryShare] of the limit that the provider reports, so that the collector
// works harder before the kernel kills the process. GOMEMLIMIT takes precedence.
//
// It calls memlimit's providers instead of memlimit.Set, which reads the environment again and has a variable of its
// own.
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

// untilSignal runs v until SIGINT or SIGTERM arrives or ctx ends. A second SIGINT or SIGTERM ends the process
// immediately. SIGHUP reloads the rules.
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
				signal.Stop(ends) // before the shutdown is visible, so that a second signal has its default effect
				end()
				select {
				case second := <-ends: // it arrived before signal.Stop
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

// raise sends sig to this process, which no longer handles it, so the signal ends the process.
func raise(sig os.Signal) {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Signal(sig) // without the signal, the process drains and ends
	}
}
