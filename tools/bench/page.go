package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed page.tmpl
var pageText string

// publish writes the page and its plots to a directory.
func (r results) publish(docs string) error {
	if len(r.Rows) == 0 {
		return fmt.Errorf("%s has no results to write a page of", filepath.Join(docs, "benchmarks"))
	}
	seen, err := os.ReadFile(filepath.Join(docs, "envoy-results.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := r.text(string(seen))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(docs, "benchmarks.md"), text, 0o644); err != nil {
		return err
	}
	if err := r.writeFront(docs); err != nil {
		return err
	}
	for name, draw := range r.plots() {
		picture, err := draw()
		if err == nil {
			err = os.WriteFile(filepath.Join(docs, "benchmarks", name), picture, 0o644)
		}
		if err != nil {
			return fmt.Errorf("drawing %s: %w", name, err)
		}
	}
	return nil
}

// text returns the page. It includes results from docs/envoy-results.md.
func (r results) text(seen string) ([]byte, error) {
	quotas := template.FuncMap{"quotas": func() string { return quotaTable(seen) }}
	t, err := template.New("page").Funcs(quotas).Parse(pageText)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, page{r})
	return out.Bytes(), err
}

// page provides tables for the template.
type page struct{ results }

// of returns the measured rows of a part.
func (p page) of(which part, prefix string) (some []row) {
	return slices.DeleteFunc(rows(), func(r row) bool {
		_, found := p.Rows[r.name]
		return !found || r.part != which || !strings.HasPrefix(r.name, prefix)
	})
}

// table formats a table in Markdown.
func table(head string, lines [][]string) string {
	if len(lines) == 0 {
		return "*Not measured in this run.*"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s", head, strings.Repeat(" --- |", strings.Count(head, "|")+1))
	for _, line := range lines {
		fmt.Fprintf(&b, "\n| %s |", strings.Join(line, " | "))
	}
	return b.String()
}

// Costs returns the table of rows of a part whose names have a prefix, which it removes.
func (p page) Costs(which, prefix string) string {
	var lines [][]string
	inRedis := false
	some := p.of(part(which), prefix+": ")
	tuned := slices.ContainsFunc(some, func(r row) bool { return len(p.Rows[r.name].values(toTuned)) > 0 })
	for _, r := range some {
		one := p.Rows[r.name]
		ours := first(one.Servers[ratelimitd])
		line := []string{
			strings.TrimPrefix(strings.TrimPrefix(r.name, prefix+": "), "connections: "),
			middle("%.0f", ours, rate), middle("%.2f", ours, p50), middle("%.2f", ours, p99),
			spread("%.1f", numbers(ours, cpu)), spread("%.2f", one.values(toIdle)),
		}
		if tuned {
			line = append(line, spread("%.2f", one.values(toTuned)))
		}
		if r.store != memory {
			inRedis = true
			line = append(line, spread("%.2f", one.values(toPeer)), spread("%.2f", one.values(rateToPeer)), middle("%.1f", ours, redisCPU))
			if slices.Contains(compared(r), redisToPeer) {
				line = append(line, spread("%.2f", one.values(redisToPeer)), spread("%.2f", one.values(redisToPair)))
			} else {
				line = append(line, "–", "–")
			}
			line = append(line, middle("%.2g", ours, scripts))
		}
		lines = append(lines, line)
	}
	head := "traffic | requests/s | p50 ms | p99 ms | server µs/request | ÷ idle"
	if part(which) == connections {
		head = strings.Replace(head, "traffic", "connections", 1)
	}
	if tuned {
		head += " | ÷ tuned idle"
	}
	if inRedis {
		head += " | ÷ peer | requests/s ÷ peer | Redis µs/request | ÷ peer | ÷ INCRBY and EXPIRE | scripts per 100 requests"
	}
	return table(head, lines)
}

// Rates returns the table of an open loop.
func (p page) Rates(name string) string {
	one := p.Rows[name]
	var lines [][]string
	for _, r := range p.of(rates, name) {
		for i, x := range r.steps {
			line := []string{fmt.Sprintf("%.0f", x)}
			for _, server := range one.named() {
				s := nth(one.Servers[server], i)
				line = append(line, middle("%.2f", s, p50), middle("%.2f", s, p99), middle("%.1f", s, p999), middle("%.1f", s, lag), spread("%.1f", numbers(s, cpu)))
			}
			lines = append(lines, line)
		}
	}
	var head strings.Builder
	head.WriteString("offered/s")
	for _, server := range one.named() {
		fmt.Fprintf(&head, " | %s: p50 ms | p99 | p99.9 | sent late, p99 | server µs/request", server)
	}
	return table(head.String(), lines)
}

// Overload returns the table of an overload.
func (p page) Overload(name string) string {
	one := p.Rows[name]
	var lines [][]string
	for _, r := range p.of(overloads, name) {
		for i := range len(r.steps) + 1 {
			load := "peak, closed loop"
			if i > 0 {
				load = fmt.Sprintf("%g × peak", r.steps[i-1])
			}
			line := []string{load}
			for _, server := range one.named() {
				s := nth(one.Servers[server], i)
				line = append(line, middle("%.0f", s, offered)+lateness(s), spread("%.0f", numbers(s, good)), middle("%.0f", s, policy), middle("%.1f %%", s, unanswered))
			}
			lines = append(lines, line)
		}
	}
	var head strings.Builder
	head.WriteString("load")
	for _, server := range one.named() {
		fmt.Fprintf(&head, " | %s: offered/s | goodput/s | by the fallback/s | errors, or late", server)
	}
	return table(head.String(), lines)
}

// lateness returns a note if calls were sent so late that figures describe the load instead of the server.
func lateness(samples []sample) string {
	const much = 5 // ms
	if len(samples) == 0 {
		return "" // an old result with fewer steps
	}
	if most := slices.Max(numbers(samples, lag)); most > much {
		return fmt.Sprintf(" (sent up to %.0f ms late)", most)
	}
	return ""
}

// Many returns the table of servers with many and with few rules or counters.
func (p page) Many() string {
	var lines [][]string
	for _, r := range p.of(many, "") {
		one := p.Rows[r.name]
		_, what, _ := strings.Cut(strings.TrimPrefix(r.name, "many: "), " ")
		for _, server := range one.named() {
			s := first(one.Servers[server])
			line := []string{fmt.Sprintf("%d %s", few, what), spread("%.1f", numbers(s, cpu)), "–"}
			if server == ratelimitd {
				line[0], line[2] = strings.TrimPrefix(r.name, "many: "), spread("%.2f", one.values(toFew))
			}
			lines = append(lines, append(line,
				fmt.Sprintf("%.1f", median(states(s, live))), fmt.Sprintf("%.0f", median(states(s, resident))),
				spread("%.2f", states(s, ready)), fmt.Sprintf("%.2f", median(states(s, starting))), spread("%.1f", states(s, pauses))))
		}
	}
	return table("with | server µs/request | ÷ with 10 | live MiB | most resident MiB | s to ready | of a processor | longest pause ms", lines)
}

// shape is a row through Envoy with its table.
type shape struct{ Name, Table string }

// Through returns the measured rows through Envoy.
func (p page) Through() (all []shape) {
	for _, r := range p.of(throughEnvoy, "") {
		one := p.Rows[r.name]
		var lines [][]string
		for _, name := range one.named() {
			s := first(one.Servers[name])
			if name == peer {
				name = "envoyproxy/ratelimit with Redis"
			}
			lines = append(lines, []string{
				name, middle("%.0f", s, rate), spread("%.2f", numbers(s, p50)), spread("%.2f", numbers(s, p99)),
				middle("%.1f", s, envoyCPU), middle("%.1f", s, cpu), middle("%.1f", s, redisCPU),
			})
		}
		head := "Envoy asks | requests/s | p50 ms | p99 ms | Envoy µs/request | server µs/request | Redis µs/request"
		all = append(all, shape{strings.TrimPrefix(r.name, "Envoy: "), table(head, lines)})
	}
	return all
}

var quotaFigures = regexp.MustCompile(`(without a limit|RLQS|RLS) p50 ([0-9.]+) ms, p99 ([0-9.]+) ms`)

// quotaTable returns the table of latencies from `make e2e`.
func quotaTable(seen string) string {
	var lines [][]string
	for _, found := range quotaFigures.FindAllStringSubmatch(seen, -1) {
		lines = append(lines, found[1:])
	}
	return table("limit | p50 ms | p99 ms", lines)
}

// Proxies describes the measured versions of Envoy and limitador.
func (p page) Proxies() string {
	var all []string
	for _, r := range p.of(throughEnvoy, "") {
		v := p.Rows[r.name].Taken.Versions
		all = append(all, "Envoy "+v.Envoy+", limitador "+orDash(v.Limitador))
	}
	return strings.Join(slices.Compact(all), ", or ")
}

// verdict is a goal with its result.
type verdict struct {
	what, asked, got string
	met              bool
	measured         bool
}

// verdicts evaluates all goals.
func (p page) verdicts() (all []verdict) {
	for _, r := range rows() {
		for _, g := range r.goals {
			values := p.Rows[r.name].values(g.figure)
			v := verdict{r.name + ": " + string(g.figure), fmt.Sprintf("≤ %g", g.most), spread(g.figure.format(), values), median(values) <= g.most, len(values) > 0}
			if g.figure == rateToPeer {
				v.asked, v.met = fmt.Sprintf("≥ %g", g.most), median(values) >= g.most
			}
			all = append(all, v)
		}
	}
	const at = 20_000
	for _, r := range p.of(rates, "Redis") {
		i, one := slices.Index(r.steps, at), p.Rows[r.name]
		ours, theirs := nth(one.Servers[ratelimitd], i), nth(one.Servers[peer], i)
		if len(theirs) == 0 {
			continue
		}
		for _, number := range []struct {
			name string
			of   func(sample) float64
		}{{"p50", p50}, {"p99", p99}} {
			a, b := median(numbers(ours, number.of)), median(numbers(theirs, number.of))
			all = append(all, verdict{
				fmt.Sprintf("%s at %d/s: %s in ms", r.name, at, number.name), fmt.Sprintf("≤ the peer's %.2f", b), spread("%.2f", numbers(ours, number.of)), a <= b, true,
			})
		}
	}
	return all
}

// Goals returns the table of goals.
func (p page) Goals() string {
	var lines [][]string
	for _, v := range p.verdicts() {
		met := "yes"
		switch {
		case !v.measured:
			met = "not measured"
		case !v.met:
			met = "**no**"
		}
		lines = append(lines, []string{v.what, v.asked, v.got, met})
	}
	return table("row and figure | goal | median (between) | met", lines)
}

// Missed lists the missed goals, one a line, and counts those without measurements.
func (p page) Missed() string {
	all := p.verdicts()
	measured := slices.DeleteFunc(slices.Clone(all), func(v verdict) bool { return !v.measured })
	missed := slices.DeleteFunc(slices.Clone(measured), func(v verdict) bool { return v.met })
	text := fmt.Sprintf("All %d goals that were measured are met by the median.", len(measured))
	if len(missed) > 0 {
		text = fmt.Sprintf("%d of %d goals are **missed** by the median:\n", len(missed), len(measured))
		for _, v := range missed {
			text += fmt.Sprintf("\n- %s is %s, and should be %s", v.what, v.got, v.asked)
		}
	}
	if n := len(all) - len(measured); n > 0 {
		text += fmt.Sprintf("\n\n%d more were not measured.", n)
	}
	return text
}

// Short returns a table of the most important figures of ratelimitd and the peer.
func (p page) Short() string {
	const inRedis, open, at = "Redis, leases off: 100,000 keys", "Redis, leases off: open loop", 3 // 20,000/s
	var lines [][]string
	for _, x := range []struct {
		what, row, format string
		step              int
		number            func(sample) float64
	}{
		{"processor time of the server for a request, counters in memory", "memory: 100,000 keys", "%.1f µs", 0, cpu},
		{"the same, each request counted in Redis", inRedis, "%.1f µs", 0, cpu},
		{"processor time of Redis for a request", inRedis, "%.1f µs", 0, redisCPU},
		{"requests a second, each counted in Redis", inRedis, "%.0f", 0, rate},
		{"the same, of one hot key, by default settings", "Redis: one key", "%.0f", 0, rate},
		{"p50 at 20,000 requests a second, each counted in Redis", open, "%.2f ms", at, p50},
		{"p99 of them", open, "%.2f ms", at, p99},
	} {
		line := []string{x.what}
		for _, server := range []string{ratelimitd, peer} {
			line = append(line, middle(x.format, nth(p.Rows[x.row].Servers[server], x.step), x.number))
		}
		lines = append(lines, line)
	}
	return table("median | ratelimitd | envoyproxy/ratelimit", lines)
}

// Profile returns the distribution of a row's processor time.
func (p page) Profile(name string) string {
	one := p.Rows[name].Profile
	if one == nil {
		return table("", nil)
	}
	var lines [][]string
	for i := range min(len(one.Packages), len(one.Functions)) {
		x, y := one.Packages[i], one.Functions[i]
		lines = append(lines, []string{"`" + x.Name + "`", fmt.Sprintf("%.1f %%", 100*x.Part), "`" + y.Name + "`", fmt.Sprintf("%.1f %%", 100*y.Part)})
	}
	return table("package | share | function | share", lines)
}

// PeerSettings returns the settings of the peer.
func (p page) PeerSettings() string {
	var all []string
	for _, r := range rows() {
		if v := p.Rows[r.name].Taken.Versions; v.Peer != "" {
			all = append(all, cmp.Or(v.PeerEnv, "not recorded"))
		}
	}
	slices.Sort(all)
	return orDash(strings.Join(slices.Compact(all), ", or "))
}

// Runs describes when and how rows were measured. A part whose rows were measured together is one item.
func (p page) Runs() string {
	var order []taken
	names := map[taken][]string{}
	for _, x := range []struct {
		part part
		name string
	}{
		{costs, "costs"}, {connections, "connections"}, {many, "rules and counters"}, {throughEnvoy, "through Envoy"}, {rates, "open loops"}, {overloads, "overload"},
	} {
		some, times := p.of(x.part, ""), map[taken]bool{}
		for _, r := range some {
			times[p.day(r)] = true
		}
		for _, r := range some {
			t, name := p.day(r), r.name
			if len(times) == 1 {
				name = x.name
			}
			if names[t] == nil {
				order = append(order, t)
			}
			if !slices.Contains(names[t], name) {
				names[t] = append(names[t], name)
			}
		}
	}
	var lines [][]string
	for _, t := range order {
		which := strings.Join(names[t], "; ")
		if len(order) == 1 {
			which = "all rows"
		}
		lines = append(lines, []string{
			t.Date.Format("2006-01-02"), t.Versions.Commit, t.Versions.Go, orDash(t.Versions.Redis), orDash(t.Versions.Peer),
			fmt.Sprintf("%d × %g s", t.Rounds, t.Seconds), fmt.Sprint(t.Seed), which,
		})
	}
	return table("date | ratelimitd | Go | Redis | envoyproxy/ratelimit | rounds | seed | rows", lines)
}

// day returns the time of measuring a row, without the time of day.
func (p page) day(r row) taken {
	t := p.Rows[r.name].Taken
	t.Date = t.Date.Truncate(24 * time.Hour)
	return t
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
