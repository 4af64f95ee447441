package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPageIsOfResults: docs/benchmarks.md and its plots are generated from results.json.
func TestPageIsOfResults(t *testing.T) {
	t.Parallel()
	const docs = "../../docs"
	all, err := readResults(filepath.Join(docs, "benchmarks", "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "benchmarks"), 0o700); err != nil {
		t.Fatal(err)
	}
	seen, err := os.ReadFile(filepath.Join(docs, "envoy-results.md"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "envoy-results.md"), seen, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := all.publish(dir); err != nil {
		t.Fatal(err)
	}
	names := []string{"benchmarks.md"}
	for name := range all.plots() {
		names = append(names, filepath.Join("benchmarks", name))
	}
	for _, name := range names {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(docs, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/%s differs from the output of bin/bench -page docs: %v", name, err)
		}
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "benchmarks.md")); bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Not measured")) {
		t.Errorf("the page lacks figures:\n%s", text)
	}
}

// TestReadme: the figures of the README equal those in results.json, and writing them changes nothing else.
func TestReadme(t *testing.T) {
	t.Parallel()
	all, err := readResults("../../docs/benchmarks/results.json")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "README.md"), readme, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := all.writeFront(filepath.Join(dir, "docs")); err != nil {
		t.Fatal(err)
	}
	if written, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || !bytes.Equal(readme, written) {
		t.Errorf("the figures of README.md differ from the output of bin/bench -page docs: %v", err)
	}
	for _, want := range []string{"\n| Redis CPU, one call at a time | ", " × the throughput** of envoyproxy/ratelimit"} {
		if !bytes.Contains(readme, []byte(want)) {
			t.Errorf("README.md lacks %q", want)
		}
	}
	for _, not := range []string{"**missed**", "not measured", "NaN"} {
		if bytes.Contains(readme, []byte(not)) {
			t.Errorf("README.md has %q, which belongs in docs/benchmarks.md", not)
		}
	}
	if _, figures, _ := bytes.Cut(readme, []byte("<!-- figures")); bytes.Count(figures[:bytes.Index(figures, []byte("<!-- end"))], []byte("\n|")) > 10 {
		t.Error("README.md has more than eight rows of figures")
	}
}

// TestTunedIdle: if a tuned idle server was measured, the page compares with it.
func TestTunedIdle(t *testing.T) {
	t.Parallel()
	const name = "memory: 100,000 keys"
	p := page{results{Rows: map[string]result{name: {Servers: map[string][][]sample{
		idleServer: oneEach(costing(1000, 12, 0)), tunedIdle: oneEach(costing(1000, 8, 0)), ratelimitd: oneEach(costing(1000, 6, 0)),
	}}}}}
	for _, want := range []string{"| ÷ idle | ÷ tuned idle |", "| 0.50 | 0.75 |"} {
		if got := p.Costs(string(costs), "memory"); !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
}

// TestPageOfPart: a page of few rows marks the missing ones.
func TestPageOfPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (results{}).publish(dir); err == nil {
		t.Error("a page without results: want an error")
	}
	if err := os.Mkdir(filepath.Join(dir, "benchmarks"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := example().publish(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"*Not measured in this run.*",
		"| one key | 1000 | 0.50 | 0.90 | 12.0 (8.0–18.0) | 0.90 (0.80–1.20) |",
		"| Redis, leases off: 100,000 keys: server CPU ÷ idle server | ≤ 0.95 | 2.00 | **no** |",
		"| Redis, leases off: 100,000 keys: Redis CPU ÷ peer | ≤ 0.5 | 0.50 | yes |",
		"2 of 4 goals are **missed**",
		"\n\n16 more were not measured.",
		"| memory: 100,000 keys: server CPU ÷ idle server | ≤ 1 | – | not measured |",
		"| processor time of Redis for a request | 6.0 µs | 12.0 µs |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}
