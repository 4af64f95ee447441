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

// writeFront writes the generated parts of the README above the directory docs, if it exists. Each part is between the lines
// <!-- NAME: written by make bench WRITE=1 --> and <!-- end of NAME -->.
func (r results) writeFront(docs string) error {
	path := filepath.Join(docs, "..", "README.md")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for name, part := range map[string]string{"headline": page{r}.headline(), "figures": page{r}.front()} {
		begin, end := "<!-- "+name+": written by make bench WRITE=1 -->\n", "<!-- end of "+name+" -->\n"
		before, rest, begun := bytes.Cut(text, []byte(begin))
		_, after, ended := bytes.Cut(rest, []byte(end))
		if !begun || !ended {
			return fmt.Errorf("%s has no lines %q and %q", path, strings.TrimSpace(begin), strings.TrimSpace(end))
		}
		text = slices.Concat(before, []byte(begin+part+end), after)
	}
	return os.WriteFile(path, text, 0o644)
}

const exactKeys, oneCall = "Redis, leases off: 100,000 keys", "Redis, leases off: connections: 1"

// headline describes the best and the worst comparison.
func (p page) headline() string {
	ratio := func(row string, f figure, format string) string {
		return fmt.Sprintf(format, median(p.Rows[row].values(f)))
	}
	return fmt.Sprintf("With 128 concurrent calls: **%s × the throughput** of envoyproxy/ratelimit, with %s × its Redis CPU per request.\n"+
		"With one call at a time: %s × the throughput, with **%s × the Redis CPU**.\n",
		ratio(exactKeys, rateToPeer, "%.1f"), ratio(exactKeys, redisToPeer, "%.2f"), ratio(oneCall, rateToPeer, "%.2f"), ratio(oneCall, redisToPeer, "%.1f"))
}

// front returns the README's figures, favourable and unfavourable.
func (p page) front() string {
	const open, at = "Redis, leases off: open loop", 3 // 20,000/s
	var lines [][]string
	for _, f := range []struct {
		what   string
		figure figure
	}{{"requests/s", rateToPeer}, {"server CPU", toPeer}, {"Redis CPU", redisToPeer}} {
		lines = append(lines, []string{f.what + ", 128 concurrent calls", p.times(exactKeys, f.figure), "1"},
			[]string{f.what + ", one call at a time", p.times(oneCall, f.figure), "1"})
	}
	row := p.Rows["Envoy: 32 connections, 10,000 keys"].Servers
	lines = append(lines, []string{
		"p50 and p99 through Envoy; no limits: " + quantiles(first(row[noFilter])), quantiles(first(row[ourRedis])), quantiles(first(row[peer])),
	})
	row = p.Rows[open].Servers
	lines = append(lines, []string{"p50 and p99 at 20,000 requests/s, without Envoy", quantiles(nth(row[ratelimitd], at)), quantiles(nth(row[peer], at))})
	return fmt.Sprintf("\nOn %s; load, server and Redis share them.\n"+
		"CPU is per request. Leases are off, except through Envoy.\n\n", p.Machine) +
		table("median (least–most) | ratelimitd | envoyproxy/ratelimit", lines) + "\n\n"
}

// times formats a row's figure as a factor.
func (p page) times(row string, f figure) string {
	values := p.Rows[row].values(f)
	if len(values) == 0 {
		return "not measured yet"
	}
	return spread("%.2f", values) + " ×"
}

// quantiles formats p50 and p99 of samples.
func quantiles(samples []sample) string {
	return middle("%.2f", samples, p50) + " and " + middle("%.2f ms", samples, p99)
}
