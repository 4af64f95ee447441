package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// replicas is the number of servers that share the Redis.
const replicas = 3

// mix holds the relative frequencies of calls.
type mix struct {
	take, look int // by the replica's rule
	over       int // takes with an override
	overLook   int // checks without hits, with an override
	peek       int // Peek of the admin API
	explain    int // Explain of the admin API, by the rule or an override
	give       int // refunds of admitted hits
}

// game is one counter with its settings and clients.
type game struct {
	domain    string
	title     string
	rules     []*rule
	serve     [replicas]int // index of each replica's initial rule
	overrides []override
	reload    time.Duration  // mean time between reloads of a replica; 0 means none
	quiet     [replicas]bool // replicas without takes
	clients   int
	pause     time.Duration // mean pause of a client between calls
	most      int64         // maximum cost
	huge      int64         // another cost, in hugeOdds of 100 calls
	hugeOdds  int
	mix       mix
}

// campaign is a set of games that run concurrently on the same three replicas.
type campaign struct {
	seed   int64 // 0 for the games of the past
	lasts  time.Duration
	deadly bool // replicas are killed and suspended
	leases bool // NEAR_CACHE_LEASES
	cool   bool // wait until leases are refunded instead of stopping the replicas
	games  []*game
}

// gamesAtOnce is the number of games in a campaign.
const gamesAtOnce = 10

// draw returns the campaign of a seed.
func draw(seed int64, lasts time.Duration) *campaign {
	d := drawer{rand.New(rand.NewPCG(uint64(seed), 0))}
	c := &campaign{seed: seed, lasts: lasts, deadly: d.odds(40), leases: d.odds(75), cool: d.odds(50)}
	algorithms := []proof.Algorithm{
		proof.FixedWindow, proof.SlidingWindow, proof.SlidingLog, proof.TokenBucket, proof.LeakyBucket, proof.Concurrency, "list",
	}
	for i := range gamesAtOnce {
		a := algorithms[(i+int(seed%7))%len(algorithms)]
		c.games = append(c.games, d.game(fmt.Sprintf("g%d", i), a))
	}
	c.settle()
	return c
}

// settle removes leases from all settings of a campaign without leases, and computes derived fields.
func (c *campaign) settle() {
	for _, g := range c.games {
		for _, r := range g.rules {
			for i := range r.limits {
				if !c.leases {
					r.limits[i].lease = "off"
				}
				r.limits[i].settle()
			}
		}
	}
}

// drawer draws games.
type drawer struct{ *rand.Rand }

// odds returns true with a probability of percent.
func (d drawer) odds(percent int) bool { return d.IntN(100) < percent }

// between draws from lo to hi, with a logarithmic distribution.
func (d drawer) between(lo, hi int64) int64 {
	x := math.Exp(math.Log(float64(lo)) + d.Float64()*(math.Log(float64(hi)+1)-math.Log(float64(lo))))
	return min(max(int64(x), lo), hi)
}

func pick[T any](d drawer, of ...T) T { return of[d.IntN(len(of))] }

func (d drawer) game(domain string, a proof.Algorithm) *game {
	g := &game{
		domain: domain, title: string(a),
		clients: 1 + d.IntN(4),
		pause:   time.Duration(d.between(1, 40)) * time.Millisecond,
		most:    pick[int64](d, 1, 1, 5, 50),
		mix:     mix{take: 100, look: d.IntN(20), peek: d.IntN(4), explain: d.IntN(4)},
	}
	if d.odds(40) {
		g.mix.give = d.IntN(30)
	}
	if a == proof.Concurrency {
		g.mix.give = 10 + d.IntN(80)
	}
	if d.odds(15) {
		g.huge, g.hugeOdds = d.between(1000, 1_000_000), int(d.between(1, 50))
	}
	long := d.odds(50) // windows that do not end during the game
	first := d.rule(a, long)
	if (a == proof.FixedWindow || a == proof.TokenBucket) && d.odds(60) {
		d.heat(g, &first.limits[0])
	}
	g.rules = []*rule{first}
	for range d.IntN(3) {
		g.rules = append(g.rules, d.variant(first, long))
	}
	for i, r := range g.rules {
		r.name = fmt.Sprintf("s%d", i)
	}
	d.settings(g)
	return g
}

// heat makes a game suitable for leases: a large limit and many calls.
func (d drawer) heat(g *game, l *limit) {
	g.clients, g.pause = 4, time.Duration(1+d.IntN(5))*time.Millisecond
	l.Hits = d.between(500, 20_000)
	if l.Debt, l.Fill = 0, 0; l.Algorithm == proof.TokenBucket {
		l.Burst = d.between(300, 5000)
		l.Initial = l.Burst
		hasten(l)
	}
	if g.huge == 0 && d.odds(30) {
		g.huge, g.hugeOdds = d.between(50, 50_000), int(d.between(1, 50))
	}
}

// settings draws the alternation of settings.
func (d drawer) settings(g *game) {
	for i := range g.serve {
		g.serve[i] = d.IntN(len(g.rules))
		g.quiet[i] = i > 0 && d.odds(15)
	}
	if len(g.rules) > 1 && d.odds(60) {
		g.reload = time.Duration(d.between(150, 2000)) * time.Millisecond
	}
	for range d.IntN(3) {
		most := int64(5000)
		if slices.ContainsFunc(g.rules[0].limits, func(l limit) bool { return l.Algorithm == proof.Concurrency }) {
			most = 50
		}
		g.overrides = append(g.overrides, override{d.between(1, most), pick(d, "second", "minute", "hour")})
	}
	if len(g.overrides) == 0 {
		return
	}
	g.mix.over, g.mix.overLook = 5+d.IntN(100), d.IntN(10)
	if d.odds(30) { // the rule only checks without hits
		g.mix.take, g.mix.look = 0, 5+d.IntN(40)
	}
}

func (d drawer) rule(a proof.Algorithm, long bool) *rule {
	if a != "list" {
		r := &rule{limits: []limit{d.limit(a, long)}}
		r.holder = a == proof.Concurrency && d.odds(50)
		return r
	}
	r := &rule{}
	from := []proof.Algorithm{
		proof.FixedWindow, proof.SlidingWindow, proof.SlidingLog, proof.TokenBucket, proof.LeakyBucket, proof.Concurrency,
	}
	for _, i := range d.Perm(len(from))[:2+d.IntN(2)] { // different algorithms, so that limits share no counter
		l := d.limit(from[i], long)
		l.Listed, l.CountRefused = true, false
		l.settle()
		r.limits = append(r.limits, l)
	}
	return r
}

// limit draws a limit.
func (d drawer) limit(a proof.Algorithm, long bool) limit {
	l := limit{Limit: proof.Limit{Algorithm: a}}
	d.window(&l, long)
	most := int64(2000)
	if long {
		most = 20_000
	}
	switch a {
	case proof.SlidingLog:
		most = 1000
	case proof.Concurrency:
		most = 60
	case proof.FixedWindow, proof.SlidingWindow, proof.TokenBucket, proof.LeakyBucket: // default
	}
	l.Hits = d.between(1, most)
	switch a {
	case proof.FixedWindow:
		l.First, l.CountRefused = d.odds(30), d.odds(50)
		if !l.First && long && d.odds(30) {
			l.unit, l.multiplier = pick(d, "day", "week", "month", "year"), 1
			l.Calendar = proof.Calendar{Unit: l.unit, Zone: pick(d, "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York")}
		}
	case proof.SlidingWindow:
		l.Precision, l.CountRefused = pick(d, 1, 2, 10, 10, 60), d.odds(15)
	case proof.SlidingLog:
		l.CountRefused = d.odds(15)
	case proof.TokenBucket, proof.LeakyBucket:
		d.bucket(&l, long)
	case proof.Concurrency: // no further parameters
	}
	l.settle()
	if a == proof.FixedWindow || a == proof.TokenBucket && l.Debt == 0 {
		l.lease = pick(d, "auto", "auto", "auto", "off", "2", "10", "100", "1000")
	}
	l.settle()
	return l
}

// window draws the window of l.
func (d drawer) window(l *limit, long bool) {
	l.unit, l.multiplier = "second", pick[int64](d, 1, 1, 2, 3)
	if long {
		l.unit, l.multiplier = pick(d, "minute", "hour", "hour", "day", "year"), pick[int64](d, 1, 1, 2)
	}
}

// bucket draws the parameters of a bucket other than its rate.
func (d drawer) bucket(l *limit, long bool) {
	l.settle()
	l.Burst = l.Hits
	switch d.IntN(4) {
	case 0:
		l.Burst = d.between(1, 2000)
	case 1:
		l.Burst = max(l.Hits/d.between(1, 100), 1)
	}
	if l.Initial = l.Burst; l.Algorithm != proof.TokenBucket {
		l.Initial = 0
		hasten(l)
		return
	}
	switch d.IntN(6) {
	case 0:
		l.Debt = d.between(1, 100)
	case 1:
		l.CountRefused = true
	case 2:
		l.Initial = d.Int64N(l.Burst + 1)
	case 3:
		if !long {
			steps(l)
		}
	}
	hasten(l)
}

// steps draws a fill interval if it divides the number of hits.
func steps(l *limit) {
	for _, k := range []int64{10, 8, 5, 4, 2} {
		if l.Hits%k == 0 {
			l.Fill = l.Window / proof.Micros(k)
			return
		}
	}
}

// hasten shortens the window of a bucket that would take too long to fill.
func hasten(l *limit) {
	const longest = 100 * 365 * 24 * 3.6e9 // µs
	l.settle()
	if float64(l.Burst+max(l.Burst, l.Debt))*float64(l.Window)/float64(l.Hits) > longest {
		l.unit, l.multiplier = "day", 1
	}
	l.settle()
}

// variant returns r with other numbers.
func (d drawer) variant(r *rule, long bool) *rule {
	v := &rule{holder: r.holder, limits: slices.Clone(r.limits)}
	for i := range v.limits {
		d.vary(&v.limits[i], long)
	}
	return v
}

// vary changes the numbers of l.
func (d drawer) vary(l *limit, long bool) {
	was, most := l.Limit, int64(1_000_000)
	if l.Algorithm == proof.SlidingLog || l.Algorithm == proof.Concurrency {
		most = 10_000
	}
	if d.odds(70) {
		l.Hits = min(max(l.Hits*d.between(1, 100)/10, 1), most)
	}
	if d.odds(40) && l.Calendar == (proof.Calendar{}) {
		d.window(l, long != d.odds(30))
	}
	if l.Burst > 0 && d.odds(60) {
		l.Burst = max(l.Burst*d.between(1, 100)/10, 1)
	}
	if l.Precision > 0 && d.odds(10) {
		l.Precision = pick(d, 1, 5, 10)
	}
	l.settle()
	if l.Algorithm == proof.TokenBucket && l.Limit != was { // reset parameters that no longer fit
		l.Initial, l.Fill = l.Burst, 0
		if !long && d.odds(40) {
			steps(l)
		}
	}
	hasten(l)
}
