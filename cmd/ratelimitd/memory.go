package main

import (
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFiles say how much memory this container may have, under cgroups of version 2 and of version 1.
func memoryFiles() []string {
	return []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}
}

// unlimited is what version 1 says at least where there is no limit: the largest number, less a part of a page.
const unlimited = 1 << 62

// memoryLimit is how much the garbage collector should keep to, so that it works harder before the kernel ends the process:
// nine tenths of the least limit in the files, in bytes; 0 where they know none.
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

// limitMemory keeps the garbage collector to the limit in the files, unless GOMEMLIMIT says what to keep to.
func (p *program) limitMemory(log *slog.Logger, files []string) {
	if p.env("GOMEMLIMIT") != "" {
		return
	}
	if limit := memoryLimit(files); limit > 0 {
		debug.SetMemoryLimit(limit)
		log.Info("memory is limited, and the garbage collector keeps to nine tenths of it", "gomemlimit", limit)
	}
}
