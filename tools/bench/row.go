package main

import (
	"fmt"
	"strings"
)

// store is the place of a row's counters.
type store int

// The places of counters.
const (
	memory store = iota
	redis        // with ratelimitd's default settings, which lease hits of hot keys
	exact        // in Redis, without leases
)

// part is a section of the page.
type part string

// The parts of the page, each with its own kind of rows.
const (
	costs       part = "cost"        // a closed loop
	connections part = "connections" // a closed loop, one call at a time on each of some connections
	rates       part = "rates"       // an open loop
	many        part = "many"        // a closed loop on a separate server with many rules or counters, and on one with few
	// A closed loop over HTTP/1.1, one call at a time on each connection, through an Envoy that calls each server in turn.
	throughEnvoy part = "envoy"
	overloads    part = "overload" // an open loop above the peak; server and Redis on one processor, the load on another
)

// row is one kind of load with its expected results.
type row struct {
	name     string
	part     part
	template string // in loadgen's syntax: '%d' is the key number, '|' separates descriptors
	keys     int
	store    store
	rules    int       // number of rules; 0 means the rules of all rows
	once     bool      // call with each key once
	rejected bool      // each request is over its limit
	conns    int       // connections
	inflight int       // open calls on each, in a closed loop
	steps    []float64 // calls a second, or multiples of the peak
	profile  bool      // also take a profile

	scripts float64 // maximum number of scripts that Redis runs per request; 0 means unlimited
	second  float64 // maximum number per second, after the first few
	goals   []goal
}

// goal is a requirement of docs/design.md.
type goal struct {
	figure figure
	most   float64 // maximum or, for rates, minimum
}

// The default closed loop.
const (
	usualConns    = 4
	usualInflight = 32
	manyKeys      = 100_000
	someKeys      = 2000
)

// rows returns all kinds of load. Except in rows of rejections, limits are never exhausted.
func rows() []row {
	all := []row{
		{name: "memory: 100,000 keys", template: "user=u%d", keys: manyKeys, profile: true, goals: []goal{{toIdle, 1}}},
		{name: "memory: one key", template: "user=hot", keys: 1},
		{name: "memory: three descriptors", template: "user=u%d|path=p%d|tenant=t", keys: manyKeys, goals: []goal{{toIdle, 1.5}}},
		{name: "memory: one key over its limit", template: "banned=hot", keys: 1, rejected: true, goals: []goal{{toIdle, 1.2}}},
		{name: "Redis: 100,000 keys", template: "user=u%d", keys: manyKeys, store: redis},
		{name: "Redis: one key", template: "user=hot", keys: 1, store: redis, scripts: .01, goals: []goal{{toIdle, 1.2}, {rateToPeer, 3.5}}},
		{name: "Redis: one token bucket", template: "bucket=hot", keys: 1, store: redis, scripts: .01},
		{name: "Redis: three descriptors", template: "user=u%d|path=p%d|tenant=t", keys: manyKeys, store: redis, goals: []goal{{toIdle, 1.5}}},
		// One of the two scripts a second is a replica's heartbeat.
		{
			name: "Redis: one key over its limit", template: "spent=hot", keys: 1, store: redis, rejected: true, second: 2,
			goals: []goal{{toIdle, 1.2}, {rateToPeer, 1.8}},
		},
		{
			name: "Redis, leases off: 100,000 keys", template: "user=u%d", keys: manyKeys, store: exact, profile: true,
			goals: []goal{{toIdle, 0.95}, {rateToPeer, 3}, {redisToPeer, 0.5}, {redisToPair, 1.6}},
		},
		{
			name: "Redis, leases off: 100,000 token buckets", template: "bucket=b%d", keys: manyKeys, store: exact,
			goals: []goal{{toIdle, 0.95}, {redisToPeer, 0.5}, {redisToPair, 1.6}},
		},
		{name: "Redis, leases off: one key", template: "user=hot", keys: 1, store: exact},
		{name: "Redis, leases off: three descriptors", template: "user=u%d|path=p%d|tenant=t", keys: manyKeys, store: exact},
	}
	all = append(all, manyRows()...)
	for i := range all {
		if all[i].part == "" {
			all[i].part = costs
		}
		all[i].conns, all[i].inflight = usualConns, usualInflight
	}
	for _, n := range []int{1, 10, 100, 500} {
		r := row{part: connections, template: "user=u%d", keys: manyKeys, conns: n, inflight: 1}
		r.name = fmt.Sprintf("memory: connections: %d", n)
		all = append(all, r)
		r.name, r.store = fmt.Sprintf("Redis, leases off: connections: %d", n), exact
		all = append(all, r)
	}
	for _, n := range []int{8, 32} {
		r := row{part: throughEnvoy, template: "x-user: u%d", conns: n, inflight: 1}
		r.name, r.keys = fmt.Sprintf("Envoy: %d connections, one key", n), 1
		all = append(all, r)
		r.name, r.keys = fmt.Sprintf("Envoy: %d connections, 10,000 keys", n), 10_000
		all = append(all, r)
	}
	steps := []float64{2000, 5000, 10_000, 20_000, 30_000}
	all = append(all,
		row{name: "memory: open loop", part: rates, template: "user=u%d", keys: manyKeys, conns: 8, steps: steps},
		row{name: "Redis, leases off: open loop", part: rates, template: "user=u%d", keys: manyKeys, store: exact, conns: 8, steps: steps})
	times := []float64{0.5, 1, 1.5, 2, 3}
	return append(all,
		row{name: "overload: Redis, one descriptor", part: overloads, template: wide(1), keys: someKeys, store: exact, steps: times},
		row{name: "overload: Redis, 16 descriptors", part: overloads, template: wide(16), keys: someKeys, store: exact, steps: times},
		row{name: "overload: memory, 16 descriptors", part: overloads, template: wide(16), keys: someKeys, steps: times})
}

// manyRows returns the rows of servers with many rules or counters.
func manyRows() []row {
	return []row{
		{
			name: "many: 100,000 rules", part: many, template: "user=u7", keys: 1, rules: 100_000,
			goals: []goal{{toFew, 1.05}, {loading, 2}, {each, 1024}},
		},
		{name: "many: 1,000,000 counters", part: many, template: "user=u%d", keys: 1_000_000, goals: []goal{{each, 200}, {pause, 10}}},
	}
}

// wide returns a template with n descriptors, which no other key shares.
func wide(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("user=%c%%d", 'a'+i)
	}
	return strings.Join(all, "|")
}

// Rules of the load. The limit of overload is never reached, so each rejection is a fallback. Rows through Envoy first verify with
// the rules of check that the server counts.
const (
	rules = `domain: bench
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: token_bucket}}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: spent, rate_limit: {unit: year, requests_per_unit: 1}}
`
	checkRules = `domain: check
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
`
	overloadRules = `domain: overload
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4294967295, on_failure: deny}}
`
)

// peerRules converts rules for a server that only has fixed windows: windows of a year, which begin once.
func peerRules(rules string) string {
	return strings.NewReplacer(
		"unit: second, requests_per_unit: 1000000, algorithm: token_bucket", "unit: year, requests_per_unit: 4294967295",
		", on_failure: deny", "").Replace(rules)
}
