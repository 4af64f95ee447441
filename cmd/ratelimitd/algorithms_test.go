package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// TestAlgorithms plays the traces in testdata/algorithms: the systems that articles on rate limiting describe, a file each,
// named by its row in docs/algorithms.md.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/algorithms/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	db := redistest.Start(t)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		raw, err := os.ReadFile(file)
		testkit.Check(t, err)
		parts := make(map[string]string)
		for _, f := range txtar.Parse(raw).Files {
			parts[f.Name] = string(f.Data)
		}
		t.Run(name, func(t *testing.T) {
			t.Run("memory", func(t *testing.T) { playOnMemory(t, parts) })
			t.Run("redis", func(t *testing.T) { playOnRedis(t, parts, db, 1) })
			t.Run("two servers on one redis", func(t *testing.T) { playOnRedis(t, parts, db, 2) })
		})
	}
}
