package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	soakRules   = 1000
	soakBounded = 20 // keys whose bounds are checked
	soakLimit   = 300
	soakWindow  = time.Minute
	soakEvery   = 10 * time.Second // interval of faults
	soakGrace   = 3 * time.Second  // after a fault, during which errors are permitted
	soakNew     = 1000             // new keys per second
	soakLag     = 20 * time.Millisecond
	soakSlow    = 50 * time.Millisecond
)

// soaking returns the long run as a check.
func soaking(d time.Duration) check {
	return check{
		"soak", fmt.Sprintf("%v at half the peak: 3 servers with leases, Sentinel, 1,000 rules, Zipf, 1,000 new keys/s, a fault every 10 s", d),
		"0 bounds broken; errors only in faults + 3 s; then RSS and what is alive grow ≤ 1 MB/min; goroutines and FDs ± 10; keys without TTL 0; " +
			"p99.9 outside faults ≤ 50 ms; 0 exits not ordered; ≤ 10 log lines/s",
		false, func(ctx context.Context, e *env) { e.soak(ctx, d) },
	}
}

// soak is the state of a long run.
type soak struct {
	*env

	redis   *sentinels
	servers []*server
	begin   time.Time

	took     [20_000]atomic.Int64 // latency outside faults in tenths of a millisecond; the last element has all longer calls
	calls    atomic.Int64
	errors   atomic.Int64 // outside faults
	inFaults atomic.Int64
	behind   atomic.Int64 // calls that the load generator sent late

	mu       sync.Mutex
	faults   []span
	bounded  map[[2]int64]int // admitted hits by key and window
	failover []span           // periods in which Redis may have lost counters
	samples  []sample
	loudest  float64     // maximum log lines per second
	forever  int         // maximum of keys without TTL
	keys     int         // maximum of keys in Redis
	slow     map[int]int // slow calls outside faults, by the second of their end
}

// span is the period of a fault; end is zero during the fault.
type span struct {
	name       string
	begin, end time.Time
}

// sample is the memory of the two servers that are never killed.
//
// alive is the live heap found by the last collection. The heap in use would be useless, because it grows to five times the live
// heap and shrinks again every few seconds: in samples of ten seconds over three minutes, that alone is a slope of ± 3 MB/min.
type sample struct {
	at         time.Duration
	rss, alive float64 // MB, sum of both
}

// aliveOf returns the live heap found by the last collection in bytes. next is the heap size of the next collection, and percent
// the permitted growth, which the server changes.
func aliveOf(next, percent float64) float64 { return next / (1 + percent/100) }

func soakText(round int) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range soakRules - 2 {
		fmt.Fprintf(&b, "  - {key: r%d, rate_limit: {unit: minute, requests_per_unit: %d, on_failure: allow}}\n", i, 1000+round%2+i)
	}
	b.WriteString("  - {key: new, rate_limit: {unit: minute, requests_per_unit: 10, on_failure: local}}\n")
	fmt.Fprintf(&b, "  - {key: bound, rate_limit: {unit: minute, requests_per_unit: %d, on_failure: deny}}\n", soakLimit)
	return b.String()
}

func (e *env) soak(ctx context.Context, d time.Duration) {
	k := &soak{env: e, bounded: map[[2]int64]int{}, slow: map[int]int{}}
	k.redis = e.sentinel(ctx, 2)
	// The jitter prevents that all keys of a minute expire simultaneously, which blocks Redis for 22 ms. The default is 300 s.
	k.servers = e.startServers(ctx, 3, soakText(0), "REDIS_TYPE=sentinel", "REDIS_URL="+k.redis.url, "EXPIRATION_JITTER_MAX_SECONDS=60")
	before := k.resources(ctx)
	rate := k.peak(ctx) / 2
	e.note("%.0f calls a second from now on", rate)
	k.rounds(ctx, d, rate)
	k.sleep(ctx, soakGrace)
	k.judge(ctx, d, before)
}

// peak returns the calls per second that all servers answer.
func (k *soak) peak(ctx context.Context) float64 {
	const long = 5 * time.Second
	var all []*running
	mixed := k.zipf()
	for _, s := range k.servers {
		all = append(all, load{addr: s.GRPC, requests: mixed, conns: 2, inflight: 8}.start(ctx))
	}
	_ = sleep(ctx, long)
	answered := 0
	for _, r := range all {
		answered += len(r.stop().of(okay, over))
	}
	return float64(answered) / long.Seconds()
}

// zipf returns requests in a Zipf distribution.
func (k *soak) zipf() (all [][]byte) {
	for i := range 20_000 {
		// The n-th most frequent key has a weight of 1/n.
		n := int(math.Exp(k.rand.Float64() * math.Log(soakRules-2)))
		if i%20 == 0 {
			all = append(all, request("d", fmt.Sprintf("bound=b%d", i/20%soakBounded)))
			continue
		}
		all = append(all, request("d", fmt.Sprintf("r%d=u%d", n-1, n*n%97)))
	}
	return all
}

// rounds runs a load on all servers and injects faults.
func (k *soak) rounds(ctx context.Context, d time.Duration, rate float64) {
	mixed := k.zipf()
	var fresh [][]byte
	for i := range 2 * soakNew * int(soakWindow/time.Second) { // expired, and thus new, when they repeat
		fresh = append(fresh, request("d", fmt.Sprintf("new=n%d", i)))
	}
	k.begin = time.Now()
	var loads []*running
	for i, s := range k.servers {
		part := fresh[i*len(fresh)/3 : (i+1)*len(fresh)/3]
		loads = append(loads,
			load{addr: s.GRPC, requests: mixed, rate: rate / 3, timeout: time.Second, conns: 2, each: func(o outcome) { k.take(o, int(o.what)) }}.start(ctx),
			load{addr: s.GRPC, requests: part, rate: soakNew / 3, timeout: time.Second, conns: 1, each: func(o outcome) { k.take(o, -1) }}.start(ctx))
	}
	for round := 0; time.Since(k.begin) < d-soakEvery; round++ {
		next := k.begin.Add(time.Duration(round+1) * soakEvery)
		lines := k.logLines()
		k.sleep(ctx, time.Until(next.Add(-soakEvery/2)))
		k.sample(ctx)
		if round%6 == 5 {
			k.lookAtKeys(ctx)
		}
		f := k.kinds()[k.rand.IntN(len(k.kinds()))]
		if round < len(k.kinds()) { // each fault once, if there is time
			f = k.kinds()[round]
		}
		k.during(f.name, func() { f.do(ctx, round) })
		k.sleep(ctx, time.Until(next))
		k.loudest = max(k.loudest, float64(k.logLines()-lines)/3/time.Since(next.Add(-soakEvery)).Seconds())
	}
	k.lookAtKeys(ctx) // before the keys expire with their minute
	for _, l := range loads {
		l.stop()
	}
}

// lookAtKeys counts keys without TTL.
func (k *soak) lookAtKeys(ctx context.Context) {
	forever, keys := k.master(ctx).withoutTTL(ctx)
	k.forever, k.keys = max(k.forever, forever), max(k.keys, keys)
}

// during runs a fault and records its period.
func (k *soak) during(name string, do func()) {
	k.mu.Lock()
	k.faults = append(k.faults, span{name: name, begin: time.Now()})
	i := len(k.faults) - 1
	k.mu.Unlock()
	k.note("%s", name)
	do()
	k.mu.Lock()
	k.faults[i].end = time.Now()
	k.mu.Unlock()
}

// faulty reports whether a call between two times overlapped a fault.
func (k *soak) faulty(from, to time.Time) bool {
	for _, f := range slices.Backward(k.faults) {
		if f.end.IsZero() || from.Before(f.end.Add(soakGrace)) {
			if to.After(f.begin) {
				return true
			}
			continue
		}
		return false
	}
	return false
}

// take counts an outcome. zipf determines the indexes of bounded requests.
func (k *soak) take(o outcome, what int) {
	now := time.Now()
	from := now.Add(-o.took)
	k.calls.Add(1)
	k.behind.Add(int64(boolInt(o.lag > soakLag)))
	k.mu.Lock()
	faulty := k.faulty(from, now)
	window := now.UnixNano() / int64(soakWindow)
	if !faulty && o.took > soakSlow {
		k.slow[int(now.Sub(k.begin).Seconds())]++
	}
	if what >= 0 && what%20 == 0 && o.kind == okay && from.UnixNano()/int64(soakWindow) == window {
		k.bounded[[2]int64{int64(what / 20 % soakBounded), window}]++
	}
	k.mu.Unlock()
	switch {
	case o.kind == okay || o.kind == over:
		if !faulty {
			k.took[min(int(o.took/(100*time.Microsecond)), len(k.took)-1)].Add(1)
		}
	case faulty:
		k.inFaults.Add(1)
	default:
		if k.errors.Add(1) < 20 {
			k.note("outside faults: %v %v after %s", o.kind, o.code, ms(o.took))
		}
	}
}

// p returns a quantile of the latency outside faults.
func (k *soak) p(q float64) time.Duration {
	var all, sum int64
	for i := range k.took {
		all += k.took[i].Load()
	}
	for i := range k.took {
		if sum += k.took[i].Load(); float64(sum) >= q*float64(all) {
			return time.Duration(i+1) * 100 * time.Microsecond
		}
	}
	return 0
}

func (k *soak) logLines() (n int) {
	for _, s := range k.servers {
		text, err := os.ReadFile(s.log)
		if err == nil {
			n += strings.Count(string(text), "\n")
		}
	}
	return n
}

// sample records the memory of the servers that are never killed.
func (k *soak) sample(ctx context.Context) {
	x := sample{at: time.Since(k.begin)}
	for _, s := range k.servers[:2] {
		all, err := s.metrics(ctx)
		if err != nil {
			k.note("no sample: %v", err)
			return
		}
		x.rss += float64(s.rss()) / (1 << 20)
		x.alive += aliveOf(all["go_memstats_next_gc_bytes"], all["go_gc_gogc_percent"]) / (1 << 20)
	}
	k.samples = append(k.samples, x)
	k.note("RSS %.1f MB, %.1f MB alive, of two servers", x.rss, x.alive)
}

// resources returns the goroutines and open files of each server.
func (k *soak) resources(ctx context.Context) (all [][2]int) {
	for _, s := range k.servers {
		all = append(all, [2]int{int(s.metric(ctx, "go_goroutines")), s.fds()})
	}
	return all
}

// slope returns the growth of memory per minute after from: least squares through the minimum of each minute. Entries that a
// fault queues are alive until the queue drains, and RSS follows within a minute or two; a leak remains when it is calm. Before
// from, pools, tables, and connections reach their sizes.
func (k *soak) slope(from time.Duration, of func(sample) float64) float64 {
	least := map[int]float64{}
	for _, s := range k.samples {
		if s.at < from {
			continue
		}
		minute := int((s.at - from) / time.Minute)
		if old, ok := least[minute]; !ok || of(s) < old {
			least[minute] = of(s)
		}
	}
	var n, sx, sy, sxx, sxy float64
	for minute, y := range least {
		x := float64(minute)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n < 2 {
		return math.NaN() // too short to tell; fails the check
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// broken counts the windows with more admitted hits than the limit, which is higher by the limit for each possible loss of
// counters.
func (k *soak) broken() (n, most int) {
	for key, admitted := range k.bounded {
		begin := time.Unix(0, key[1]*int64(soakWindow))
		allowed := soakLimit
		for _, at := range k.failover {
			if at.begin.Before(begin.Add(soakWindow)) && !at.end.Before(begin) {
				allowed += soakLimit
			}
		}
		if most = max(most, admitted); admitted > allowed {
			n++
			k.note("key b%d: %d admitted in the minute from %v, bound %d", key[0], admitted, begin, allowed)
		}
	}
	return n, most
}

func (k *soak) judge(ctx context.Context, d time.Duration, before [][2]int) {
	k.mu.Lock()
	broken, most := k.broken()
	k.mu.Unlock()
	k.measured(broken == 0 && most > soakLimit/2, "%d calls, %d faults; %d bounds broken, at most %d admitted in a minute of %d",
		k.calls.Load(), len(k.faults), broken, most, soakLimit)
	k.measured(k.errors.Load() == 0, "%d errors outside faults, %d in them", k.errors.Load(), k.inFaults.Load())
	from := min(2*time.Minute, d/2)
	rss := k.slope(from, func(s sample) float64 { return s.rss }) / 2 // of one server
	alive := k.slope(from, func(s sample) float64 { return s.alive }) / 2
	k.measured(rss <= 1, "RSS %+.2f MB/min", rss)
	k.measured(alive <= 1, "alive %+.2f MB/min", alive)
	var after [][2]int
	near := func() bool {
		after = k.resources(ctx)
		for i := range after {
			for j := range after[i] {
				if diff := after[i][j] - before[i][j]; diff > 10 || diff < -10 {
					return false
				}
			}
		}
		return true
	}
	_, same := poll(ctx, 10*time.Second, near)
	k.measured(same, "goroutines and files %v, before %v", after, before)
	k.measured(k.forever == 0 && k.keys > soakNew, "%d of %d keys without TTL", k.forever, k.keys)
	for _, second := range slices.Sorted(maps.Keys(k.slow)) {
		k.note("%d calls that ended in second %d of the load, %d of a minute, took more than %s, outside faults", k.slow[second], second,
			k.begin.Add(time.Duration(second)*time.Second).Second(), ms(soakSlow))
	}
	k.measured(k.p(0.999) <= soakSlow, "p99.9 outside faults %s", ms(k.p(0.999)))
	exits := 0
	for _, s := range k.servers {
		exits += boolInt(s.Died())
	}
	for _, s := range slices.Concat(k.redis.nodes, k.redis.all) {
		exits += boolInt(s.Died())
	}
	k.measured(exits == 0, "%d exits not ordered", exits)
	k.measured(k.loudest <= 10, "%.1f log lines/s of a server at most", k.loudest)
	if late := k.behind.Load(); late > k.calls.Load()/100 {
		k.published("DISTURBED: %d calls were sent more than %s late", late, ms(soakLag))
	}
}
