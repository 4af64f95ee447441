package main

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

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
		log.Info("memory is limited, and the garbage collector keeps to nine tenths of it", "gomemlimit", share)
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	default:
		log.Warn("cannot find out this process's memory limit, so the garbage collector keeps to none; GOMEMLIMIT sets one", "error", err)
	}
}
