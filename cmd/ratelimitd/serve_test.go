package main

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/ratelimitd/ratelimitd/internal/cli"
)

// TestLimitMemory: Go's memory limit is nine tenths of the process's, unless GOMEMLIMIT is set or there is no limit.
func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	none := func(err error) memlimit.Provider { return func() (uint64, error) { return 0, err } }
	for name, tt := range map[string]struct {
		environ  []string
		provider memlimit.Provider
		want     int64
		says     string // text in the log
	}{
		"a limit":              {nil, memlimit.Limit(512 << 20), 483183820, "level=INFO"},
		"a large one":          {nil, memlimit.Limit(10 << 30), 9 << 30, "gomemlimit=9663676416"},
		"the largest":          {nil, memlimit.Limit(math.MaxUint64), math.MaxInt64, "level=INFO"},
		"GOMEMLIMIT":           {[]string{"GOMEMLIMIT=1GiB"}, memlimit.Limit(10 << 30), before, ""},
		"GOMEMLIMIT, off":      {[]string{"GOMEMLIMIT=off"}, memlimit.Limit(10 << 30), before, ""},
		"GOMEMLIMIT, empty":    {[]string{"GOMEMLIMIT="}, memlimit.Limit(10 << 30), 9 << 30, "level=INFO"},
		"no limit":             {nil, none(memlimit.ErrNoLimit), before, ""},
		"no cgroup":            {nil, none(memlimit.ErrNoCgroup), before, ""},
		"no cgroups here":      {nil, none(memlimit.ErrCgroupsNotSupported), before, ""},
		"a limit out of reach": {nil, none(errors.New("open memory.max: permission denied")), before, "level=WARN"},
	} {
		debug.SetMemoryLimit(before)
		var log bytes.Buffer
		limitMemory(cli.Process{Environ: tt.environ}, slog.New(slog.NewTextHandler(&log, nil)), tt.provider)
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("%s: the limit is %d, want %d", name, got, tt.want)
		}
		if !strings.Contains(log.String(), tt.says) || tt.says == "" && log.Len() > 0 {
			t.Errorf("%s: the log is %q, want %q in it", name, &log, tt.says)
		}
	}
}
