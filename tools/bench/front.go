package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The figures of the README stand between these lines.
const (
	frontBegin = "<!-- figures: written by make bench WRITE=1 -->\n"
	frontEnd   = "<!-- end of figures -->\n"
)

// writeFront writes the figures into the README above a directory of documents, if there is one.
func (r results) writeFront(docs string) error {
	path := filepath.Join(docs, "..", "README.md")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(frontBegin))
	_, after, ended := bytes.Cut(rest, []byte(frontEnd))
	if !begun || !ended {
		return fmt.Errorf("%s has no lines %q and %q", path, strings.TrimSpace(frontBegin), strings.TrimSpace(frontEnd))
	}
	whole := slices.Concat(before, []byte(frontBegin+page{r}.front()+frontEnd), after)
	return os.WriteFile(path, whole, 0o644)
}

// front returns the figures of the README: those that flatter ratelimitd, and those that do not.
func (p page) front() string {
	const memoryKeys, exactKeys, alone = "memory: 100,000 keys", "Redis, leases off: 100,000 keys", "Redis, leases off: connections: 1"
	const open, at = "Redis, leases off: open loop", 3 // 20,000/s
	lines := [][]string{
		{"server CPU, in memory, beside an idle grpc-go server", p.times(memoryKeys, toIdle), "–"},
		{"the same, the idle server with the same GOGC and stream workers", p.times(memoryKeys, toTuned), "–"},
		{"server CPU with Redis, 128 calls in flight", p.times(exactKeys, toPeer), "1"},
		{"server CPU with Redis, 1 call in flight", p.times(alone, toPeer), "1"},
		{"Redis CPU, 128 calls in flight", p.times(exactKeys, redisToPeer), "1"},
		{"Redis CPU, 32 calls in flight, through Envoy", p.throughRedis("32"), "1"},
		{"Redis CPU, 1 call in flight", p.times(alone, redisToPeer), "1"},
		{"requests/s, 1 call in flight", p.times(alone, rateToPeer), "1"},
	}
	for _, n := range []string{"32", "8"} {
		row := p.Rows["Envoy: "+n+" connections, 10,000 keys"].Servers
		lines = append(lines, []string{
			"p50 and p99 through Envoy, " + n + " connections; without limits " + quantiles(first(row[noFilter])),
			quantiles(first(row[ourRedis])), quantiles(first(row[peer])),
		})
	}
	row := p.Rows[open].Servers
	lines = append(lines, []string{"p50 and p99 at 20,000 requests/s, without Envoy", quantiles(nth(row[ratelimitd], at)), quantiles(nth(row[peer], at))})
	return fmt.Sprintf("\nOn %s, which load, server and Redis share.\n"+
		"CPU is for one request. Leases are off, except in the rows through Envoy, which has 10,000 keys.\n\n", p.Machine) +
		table("median (least–most of the rounds) | ratelimitd | envoyproxy/ratelimit", lines) + "\n\n" + p.Missed() + "\n"
}

// times returns the ratio that a figure of a row is.
func (p page) times(row string, f figure) string {
	values := p.Rows[row].values(f)
	if len(values) == 0 {
		return "not measured yet"
	}
	return spread("%.2f", values) + " ×"
}

// throughRedis returns the ratio of what a request costs Redis, through Envoy with so many connections.
func (p page) throughRedis(connections string) string {
	row := p.Rows["Envoy: "+connections+" connections, 10,000 keys"].Servers
	return spread("%.2f", divide(first(row[ourRedis]), first(row[peer]), redisCPU)) + " ×"
}

// quantiles returns p50 and p99 of samples.
func quantiles(samples []sample) string {
	return middle("%.2f", samples, p50) + " and " + middle("%.2f ms", samples, p99)
}
