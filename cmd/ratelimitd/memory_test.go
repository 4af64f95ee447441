package main

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		v2, v1 string // contents; empty is no such file
		want   int64
	}{
		"version 2":              {"536870912\n", "", 483183820},
		"version 2, none":        {"max\n", "", 0},
		"version 1":              {"", "1000\n", 900},
		"version 1, none":        {"", "9223372036854771712\n", 0},
		"both, the least":        {"2000\n", "1000\n", 900},
		"both, one without":      {"max\n", "1000\n", 900},
		"no cgroup":              {"", "", 0},
		"the largest":            {strconv.Itoa(math.MaxInt), "", 0},
		"not a whole tenth":      {"1009", "", 908},
		"nothing":                {"\n", "", 0},
		"nonsense":               {"lots", "", 0},
		"negative":               {"-1", "", 0},
		"larger than a number":   {"99999999999999999999", "", 0},
		"as large as can be":     {strconv.Itoa(unlimited - 1), "", 4150517416584649112},
		"a file that is no file": {"dir", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := memoryLimit(memoryFilesWith(t, tt.v2, tt.v1)); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

// memoryFilesWith are files like those of cgroups.
func memoryFilesWith(t *testing.T, v2, v1 string) []string {
	t.Helper()
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "memory.max"), filepath.Join(dir, "memory.limit_in_bytes")}
	for i, text := range []string{v2, v1} {
		var err error
		switch text {
		case "":
		case "dir":
			err = os.Mkdir(files[i], 0o700)
		default:
			err = os.WriteFile(files[i], []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestGOMEMLIMITWins(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	files := memoryFilesWith(t, strconv.Itoa(10<<30), "")
	for _, tt := range []struct {
		environ []string
		want    int64
	}{
		{[]string{"GOMEMLIMIT=1GiB"}, before},
		{[]string{"GOMEMLIMIT=off"}, before},
		{[]string{"GOMEMLIMIT="}, 9 << 30},
		{nil, 9 << 30},
	} {
		debug.SetMemoryLimit(before)
		p := &program{environ: tt.environ}
		p.limitMemory(slog.New(slog.DiscardHandler), files)
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("%q: the limit is %d, want %d", tt.environ, got, tt.want)
		}
	}
}
