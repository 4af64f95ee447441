package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// badInput returns the checks of group D.
func badInput() []check {
	return []check{
		{
			"D22", "requests that are odd, broken or hostile", "≥ 60 cases, exact code each, 0 crashes; shaped by an end user: 0 gRPC errors", false,
			asListed(60, "^(TestG[0-9]|TestScripts$/^G)", "./internal/envoy/rls", "./internal/decide/limiter", "./pkg/descriptors"), // rows G of docs/faults.md
		},
		{"D23", "no two descriptors share a counter", "100,000 random and 500 crafted, 0 collisions; slots uniform (χ² p > 0.01) with {} in values", true, injective},
		{"D24", "rule files that are odd, broken or hostile", "≥ 40 files as listed, ≤ 200 ms each (10 MB ≤ 5 s), old rules kept", false, oddRules},
		{
			"D25", "a control plane that sends invalid data", "≥ 20 cases; empty snapshot keeps limits; NACK names the resource", false,
			asListed(20, "^TestX", "./internal/rules/configwatch/xds"),
		},
		{"D26", "abuse of HTTP and HTTP/2: 10 attacks", "good client p99 ≤ 50 ms; RSS +≤ 100 MB; returns ≤ 30 s", true, attacks},
		{
			"D27", "fuzzing: request decoder, counter names, matcher against a naive one, YAML loader, xDS converter, /json",
			"6 × 8 s, 0 crashes, corpus ≥ 200", false, fuzz,
		},
	}
}

// letters returns parts of words, including separators of keys and values.
func letters() []string {
	return []string{"a", "b", "_", "|", ":", ".", "{", "}", "=", ",", "/", "\x00", "\n", " ", "%", "é", "{x}", "_b"}
}

// pairs returns descriptors that must have different counters, although their joined texts are equal.
func (e *env) pairs(random, crafted int) (all [][][2]string) {
	seen := map[string]bool{}
	add := func(d [][2]string) bool {
		if seen[fmt.Sprintf("%q", d)] {
			return false
		}
		seen[fmt.Sprintf("%q", d)] = true
		all = append(all, d)
		return true
	}
	for n := 0; n < crafted; {
		joined := strings.Join(e.words(2+e.rand.IntN(3)), "_")
		for cut := 1; cut < len(joined) && n < crafted; cut++ { // one text, cut anywhere
			if utf8.ValidString(joined[:cut]) && add([][2]string{{"k", joined[:cut]}, {"k", joined[cut:]}}) {
				n++
			}
		}
		n += boolInt(add([][2]string{{"k", joined}}))
	}
	for n := 0; n < random; {
		d := make([][2]string, 1+e.rand.IntN(3))
		for i := range d {
			d[i] = [2]string{"k", strings.Join(e.words(1+e.rand.IntN(8)), "")}
		}
		n += boolInt(add(d))
	}
	return all
}

// words draws n letters.
func (e *env) words(n int) []string {
	all, some := letters(), make([]string, n)
	for i := range some {
		some[i] = all[e.rand.IntN(len(all))]
	}
	return some
}

// askAll returns a request with the descriptors all.
func askAll(domain string, all [][][2]string) *rlsv3.RateLimitRequest {
	q := ask(domain)
	for _, d := range all {
		m := &commonv3.RateLimitDescriptor{}
		for _, entry := range d {
			m.Entries = append(m.Entries, &commonv3.RateLimitDescriptor_Entry{Key: entry[0], Value: entry[1]})
		}
		q.Descriptors = append(q.Descriptors, m)
	}
	return q
}

func injective(ctx context.Context, e *env) {
	const random, crafted, batch, workers = 100_000, 500, 100, 8
	r := e.redis(ctx)
	limit := "rate_limit: {unit: year, requests_per_unit: 1}"
	rules := fmt.Sprintf("domain: d\ndescriptors:\n  - key: k\n    %[1]s\n    descriptors:\n      - key: k\n        %[1]s\n        descriptors: [{key: k, %[1]s}]\n", limit)
	s := e.startServer(ctx, rules, "REDIS_URL="+r.addr, patient)
	calls := callers(workers, s)
	all := e.pairs(random, crafted)
	var wg sync.WaitGroup
	var collisions, failures atomic.Int64
	work := make(chan [][][2]string)
	for _, c := range calls {
		wg.Go(func() {
			for some := range work {
				answer, err := c.ShouldRateLimit(ctx, askAll("d", some))
				if err != nil {
					failures.Add(1)
					e.note("%v", err)
				}
				collisions.Add(e.countedBefore(some, answer))
			}
		})
	}
	for some := range slices.Chunk(all, batch) {
		work <- some
	}
	close(work)
	wg.Wait()
	good := failures.Load() == 0 && collisions.Load() == 0 && ctx.Err() == nil
	e.measured(good, "%d descriptors, %d collisions, %d failed calls", len(all), collisions.Load(), failures.Load())
	keys := r.keys(ctx)
	p := uniform(keys)
	e.measured(len(keys) >= len(all) && p > 0.01, "%d keys in Redis, slots χ² p = %.3f", len(keys), p)
}

// countedBefore returns how many descriptors of a call had been counted before.
func (e *env) countedBefore(all [][][2]string, answer *rlsv3.RateLimitResponse) (n int64) {
	for i, st := range answer.GetStatuses() {
		if st.GetCode() != rlsv3.RateLimitResponse_OK {
			n++
			e.note("%q was counted before", all[i])
		}
	}
	return n
}

// uniform returns the p-value of a χ² test that the slots of keys are distributed evenly.
func uniform(keys []string) float64 {
	const cells = 64
	var counts [cells]float64
	for _, k := range keys {
		counts[slot(k)*cells/slots]++
	}
	square, expected := 0.0, float64(len(keys))/cells
	for _, n := range counts {
		square += (n - expected) * (n - expected) / expected
	}
	// Wilson and Hilferty: the cube root of χ² divided by its degrees of freedom is nearly normal.
	const free = cells - 1.0
	z := (math.Cbrt(square/free) - (1 - 2/(9*free))) / math.Sqrt(2/(9*free))
	return math.Erfc(z/math.Sqrt2) / 2
}

// slot returns the Redis Cluster slot of a key.
func slot(key string) int {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if n := strings.IndexByte(key[i+1:], '}'); n > 0 {
			key = key[i+1 : i+1+n]
		}
	}
	const polynomial = 0x1021
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			top := crc & 0x8000
			if crc <<= 1; top != 0 {
				crc ^= polynomial
			}
		}
	}
	return int(crc) % slots
}

// fuzz runs fuzz targets of the project for 8 s each.
func fuzz(ctx context.Context, e *env) {
	targets := [][2]string{
		{"./internal/envoy/rls", "FuzzDecode"},
		{"./pkg/descriptors", "FuzzCounterKey"},
		{"./pkg/descriptors", "FuzzMatch"},
		{"./pkg/descriptors", "FuzzLoad"},
		{"./internal/rules/configwatch/xds", "FuzzDecode"},
		{"./internal/envoy/rls", "FuzzJSON"},
	}
	execs, corpus, crashes := 0, 0, 0
	for _, t := range targets {
		text, err := output(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t[1]+"$", "-fuzztime", "8s", t[0])
		if err != nil {
			e.note("%s %s: %v\n%s", t[0], t[1], err, text)
		}
		crashed := err != nil && !timeIsUp(text)
		if crashed {
			crashes++
		}
		last := text[max(0, strings.LastIndex(text, "execs: ")):]
		tried := sum(last, `^execs: (\d+)`)
		if !crashed && tried == 0 { // go test succeeds without such a target
			e.fail("%s %s tried nothing: %s", t[0], t[1], text)
		}
		execs += tried
		corpus += sum(last, `total: (\d+)\)`)
		e.note("%s %s: %s", t[0], t[1], strings.TrimSpace(strings.SplitN(last, "\n", 2)[0]))
	}
	e.measured(crashes == 0 && corpus >= 200, "%d targets, %d inputs tried, corpus %d, %d crashes", len(targets), execs, corpus, crashes)
}

// upTime matches output of go test before Go 1.27 at the end of the fuzzing time (https://go.dev/issue/75804).
var upTime = regexp.MustCompile(`--- FAIL: Fuzz\w+ \([0-9.]+s\)\n {4}context deadline exceeded\n`)

// timeIsUp reports whether the output of go test shows only the end of the fuzzing time. A crash prints its input.
func timeIsUp(text string) bool {
	return upTime.MatchString(text) && !strings.Contains(text, "Failing input")
}
