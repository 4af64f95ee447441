package main

import (
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFiles returns the files with the memory limit of this container, for cgroups version 2 and version 1.
func memoryFiles() []string {
	return []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}
}

// unlimited is the least that version 1 shows if there is no limit: the largest number, rounded down to a page.
const unlimited = 1 << 62

// memoryLimit returns the limit for the garbage collector, so that it works harder before the kernel kills the process:
// nine tenths of the lowest limit in the files, in bytes, or 0 if there is none.
func memoryLimit(files []string) int64 {
	var least int64
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // no such cgroup
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || limit <= 0 || limit >= unlimited {
			continue // the word max
		}
		if least == 0 || limit < least {
			least = limit
		}
	}
	return least/10*9 + least%10*9/10
}

// limitMemory applies the limit in the files to the garbage collector, unless GOMEMLIMIT sets one.
func (p *program) limitMemory(log *slog.Logger, files []string) {
	if p.env("GOMEMLIMIT") != "" {
		return
	}
	if limit := memoryLimit(files); limit > 0 {
		debug.SetMemoryLimit(limit)
		log.Info("memory is limited, and the garbage collector keeps to nine tenths of it", "gomemlimit", limit)
	}
}
