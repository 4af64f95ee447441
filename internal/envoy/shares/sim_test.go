package shares_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
)

// The simulation runs clients, replicas and a store on virtual time, in slices. Requests arrive as a Poisson process; messages are
// delayed, streams break, clients and replicas die. A single source of random numbers determines everything, so a seed repeats a history.

const (
	second = shares.Micros(1_000_000)
	slice  = second / 40

	lead = 1.3 // seconds of the limit's rate, for each starting replica: the prepayment of shares, and their tokens
)

// simLimit is the limit of a simulation, and how it is divided.
type simLimit struct {
	shares.Limit
	mode     shares.Mode
	delivery shares.Micros // in strict mode; 0 means 5 s
}

func (l *simLimit) rate() float64 { return float64(l.Hits) / (float64(l.Window) / float64(second)) }

// simStore is the store: one counter, and the table of the replicas.
type simStore struct {
	limit shares.Limit
	level float64
	at    shares.Micros
	table []shares.Row
	down  bool
}

func (s *simStore) advance(now shares.Micros) {
	if s.limit.Burst > 0 {
		s.level = min(float64(s.limit.Burst), s.level+float64(s.limit.Hits)*float64(now-s.at)/float64(s.limit.Window))
	} else if now/s.limit.Window != s.at/s.limit.Window {
		s.level = float64(s.limit.Hits)
	}
	s.at = now
}

func (s *simStore) take(now shares.Micros, hits uint64) uint64 {
	s.advance(now)
	granted := min(hits, uint64(max(0, s.level)))
	s.level -= float64(granted)
	return granted
}

// overdraw takes hits, at most the burst more than are left.
func (s *simStore) overdraw(now shares.Micros, hits uint64) {
	s.advance(now)
	s.level = max(-float64(s.limit.Burst), s.level-float64(hits))
}

func (s *simStore) most() float64 {
	if s.limit.Burst > 0 {
		return float64(s.limit.Burst)
	}
	return float64(s.limit.Hits)
}

func (s *simStore) answer(now shares.Micros, a shares.Request, several bool) (r shares.Answer) {
	if r.Granted = a.Hits; s.limit.Overdraft {
		s.overdraw(now, a.Hits)
	} else {
		r.Granted = s.take(now, a.Hits)
	}
	s.level = min(s.most(), s.level+float64(a.Return))
	r.Left = math.Floor(s.level)
	if s.limit.Burst == 0 {
		r.Ends = (now/s.limit.Window + 1) * s.limit.Window
	}
	if several {
		s.table = sharestest.Agree(s.table, a.Row, now)
		r.Rows = s.table
	}
	return r
}

// simReplica is a replica. Its clock is ahead by skew.
type simReplica struct {
	bucket *shares.Bucket
	dead   bool
	skew   shares.Micros
	asked  uint64  // hits requested by RLS callers since the last answer
	calls  float64 // their rate per second
	part   float64 // fraction of a call that has not arrived completely
}

// simClient is an Envoy with one stream.
type simClient struct {
	envoy   sharestest.Bucket
	client  shares.Client
	demand  float64 // requests per second
	alive   bool
	open    bool // its stream is open
	known   bool // it has the bucket
	replica int
	reports shares.Micros // time of the next tick
	last    shares.Micros // time of the last report
	late    shares.Micros // latest arrival of a message to it, because a stream keeps the order
	lateIn  shares.Micros
	inbox   []simMessage
	held    float64 // hits per second, as known to the server
	denied  uint64
	named   bool   // keeps its ID when its stream is replaced
	lies    uint64 // factor of its reports, or 0
}

type simMessage struct {
	at     shares.Micros
	action shares.Action
	usage  shares.Usage
	client *simClient
}

// sim is a running simulation.
type sim struct {
	limit    simLimit
	rand     *rand.Rand
	now      shares.Micros
	store    simStore
	replicas []*simReplica
	clients  []*simClient
	names    []int // by ID: index of the client
	fallback shares.Fallback
	byRLS    float64      // hits admitted to RLS callers
	reports  []simMessage // in progress to replicas
	delay    func() shares.Micros
	alone    bool                                  // there is one replica, without a table
	arrive   func(client int, mean float64) uint64 // draws the requests of a slice; nil means a Poisson process
	seen     func(client int, what string)         // receives reports and actions; may be nil
	chaos    bool
	late     shares.Micros // maximum delay of messages by chaos
	started  int           // number of replicas so far

	admitted []float64 // by slice
	sent     int       // number of assignments
	longest  uint32    // longest TTL of these, in seconds
	peak     float64   // maximum admitted beyond the rate in any period
	over     float64
	filled   float64         // hits used and not debited while the store is down
	extra    float64         // E of the bound, since over was 0
	begun    []shares.Micros // times since then, or shortly before, when replicas started or reached the store again
	unbound  float64         // maximum excess of over beyond the burst and E
	window   float64         // admitted in this window
	worst    float64         // maximum of window
	free     float64         // admitted without an assignment
	owed     float64         // strict: maximum debt of all replicas together while the store was down
}

func newSim(seed uint64, l simLimit, replicas, clients int) *sim {
	s := &sim{limit: l, rand: rand.New(rand.NewPCG(seed, 1)), now: 600 * second}
	s.store = simStore{limit: l.Limit, level: float64(max(l.Burst, l.Hits)), at: s.now}
	if l.Burst > 0 {
		s.store.level = float64(l.Burst)
	}
	s.delay, s.alone = s.fast, replicas == 0
	replicas = max(replicas, 1)
	for range replicas {
		s.replicas = append(s.replicas, s.newReplica())
	}
	for range clients {
		s.join()
	}
	return s
}

func (s *sim) newReplica() *simReplica {
	s.started++
	s.begun = append(s.begun, s.now)
	c := shares.Config{Limit: s.limit.Limit, Mode: s.limit.mode, Delivery: s.limit.delivery}
	if !s.alone {
		c.Replica = strconv.Itoa(s.started)
	}
	return &simReplica{bucket: shares.New(c, s.now)}
}

// fast draws the usual delay of a message.
func (s *sim) fast() shares.Micros { return second/1000 + shares.Micros(s.rand.ExpFloat64()*2000) }

// join adds a client.
func (s *sim) join() *simClient {
	c := &simClient{client: shares.Client{Weight: 1}, alive: true, named: true, replica: s.rand.IntN(len(s.replicas))}
	s.clients = append(s.clients, c)
	s.rename(c)
	return c
}

// poisson draws the number of requests in a slice.
func (s *sim) poisson(mean float64) uint64 {
	if mean > 30 {
		return uint64(max(0, math.Round(mean+math.Sqrt(mean)*s.rand.NormFloat64())))
	}
	n, p := uint64(0), s.rand.Float64()
	if p <= 1-mean { // less than the limit below, so no exponential is needed
		return 0
	}
	for limit := math.Exp(-mean); p > limit; {
		n, p = n+1, p*s.rand.Float64()
	}
	return n
}

// arrivals draws the number of a client's requests in a slice.
func (s *sim) arrivals(client int, mean float64) uint64 {
	if s.arrive != nil {
		return s.arrive(client, mean)
	}
	return s.poisson(mean)
}

// run simulates until a time.
func (s *sim) run(until shares.Micros) {
	for s.now < until {
		s.now += slice
		s.store.advance(s.now)
		if w := s.limit.Window; s.limit.Burst == 0 && s.now%w < slice {
			s.window = 0
		}
		sum, free := 0.0, s.free
		for i, c := range s.clients {
			if c.alive {
				sum += s.step(i, c)
			}
		}
		s.believe()
		s.admitted = append(s.admitted, sum)
		s.count(sum-(s.free-free), s.limit.rate()*float64(slice)/float64(second))
		s.serve()
	}
}

func (s *sim) client(id string) *simClient { return s.clients[s.names[[]rune(id)[0]-0x4e00]] }

// count updates the bound: the hits admitted in any period are at most the burst, the rate, and E.
func (s *sim) count(sum, flows float64) {
	s.window += sum
	s.worst = max(s.worst, s.window)
	s.over += sum - flows
	if s.over <= 0 {
		s.over, s.extra = 0, 0
		s.begun = slices.DeleteFunc(s.begun, func(at shares.Micros) bool { return s.now-at > 2*second })
	}
	s.peak = max(s.peak, s.over)
	s.unbound = max(s.unbound, s.over-s.extra-float64(s.limit.Burst)-lead*s.limit.rate()*float64(max(1, len(s.begun))))
}

// receive delivers the messages to a client until a time.
func (s *sim) receive(c *simClient, until shares.Micros) {
	for len(c.inbox) > 0 && c.inbox[0].at <= until {
		a := c.inbox[0].action
		c.envoy.Receive(s.now, a.Assignment)
		c.known = c.known && a.Kind != shares.Abandon
		c.inbox = c.inbox[1:]
	}
}

// step simulates a slice of a client.
func (s *sim) step(i int, c *simClient) (admitted float64) {
	s.receive(c, s.now)
	if n := s.arrivals(i, c.demand*float64(slice)/float64(second)); n > 0 {
		forced := c.envoy.Limited(s.now)
		admitted = float64(c.envoy.Request(s.now, n))
		c.denied += n - uint64(admitted)
		if !forced {
			s.free += admitted
		} else if !c.open && c.known && !s.chaos { // unreachable
			s.extra += admitted
		}
		if !c.known && !s.replicas[c.replica].dead {
			c.known, c.open = true, true
			c.last, c.reports = s.now, s.now+sharestest.ReportEvery
			s.report(c, 0)
		}
	}
	if c.known && s.now >= c.reports {
		c.reports += sharestest.ReportEvery
		s.tick(c)
	}
	return admitted
}

// tick makes a client's report, or reopens its stream.
func (s *sim) tick(c *simClient) {
	if c.open && !s.replicas[c.replica].dead {
		s.report(c, s.now-c.last)
		return
	}
	c.open, c.inbox = false, nil
	for range len(s.replicas) {
		if c.replica = (c.replica + 1) % len(s.replicas); !s.replicas[c.replica].dead {
			c.open = true
			if !c.named {
				s.rename(c)
			}
			s.report(c, s.now-c.last)
			return
		}
	}
	s.extra += float64(c.envoy.Report().Allowed) // the report is lost
	c.last = s.now
}

// drain closes the streams of a replica gracefully, and ends it.
func (s *sim) drain(i int) {
	r := s.replicas[i]
	for _, a := range r.bucket.Close(s.now + r.skew) {
		s.send(r, a)
	}
	for _, c := range s.clients {
		if c.replica == i && c.open {
			s.receive(c, shares.Micros(math.MaxInt64)) // messages sent before the end arrive
			r.bucket.Leave(s.now+r.skew, c.client.ID)
			c.open = false
		}
	}
	if row, ok := r.bucket.Farewell(s.now + r.skew); ok && !s.store.down {
		s.store.table = sharestest.Agree(s.store.table, row, s.now)
	}
	r.dead = true
}

// rename gives a client without a name the next ID, like a new stream.
func (s *sim) rename(c *simClient) {
	c.client.ID = string(rune(0x4e00 + len(s.names)))
	s.names = append(s.names, slices.Index(s.clients, c))
}

func (s *sim) report(c *simClient, elapsed shares.Micros) {
	u := c.envoy.Report()
	c.last = s.now
	c.lateIn = max(c.lateIn, s.now+s.delay())
	lies := max(c.lies, 1)
	usage := shares.Usage{Elapsed: elapsed / second * second, Allowed: u.Allowed * lies, Denied: u.Denied * lies}
	s.reports = append(s.reports, simMessage{at: c.lateIn, client: c, usage: usage})
}

// serve simulates a slice of the replicas.
func (s *sim) serve() {
	rest := s.reports[:0]
	for _, m := range s.reports {
		switch r := s.replicas[m.client.replica]; {
		case m.at > s.now:
			rest = append(rest, m)
		case !r.dead && m.client.open:
			s.tell(m.client.client.ID, fmt.Sprintf("reports %d allowed, %d denied", m.usage.Allowed, m.usage.Denied))
			r.bucket.Report(s.now+r.skew, m.client.client, m.usage)
		}
	}
	s.reports = rest
	if s.store.down {
		s.owe()
	}
	for _, r := range s.replicas {
		s.callStore(r)
		if r.dead || r.bucket.Next() > s.now+r.skew {
			continue
		}
		if a, ok := r.bucket.Request(s.now + r.skew); ok {
			if !s.alone { // like the service, so that replicas do not ask in turn
				r.bucket.Pause(s.now + r.skew + second + shares.Micros(s.rand.Int64N(int64(second/4))))
			}
			if s.store.down {
				r.bucket.Failed(s.now+r.skew, s.fallback)
			} else {
				answer := s.store.answer(s.now, a, !s.alone)
				if answer.Ends > 0 {
					answer.Ends += r.skew
				}
				answer.Requested, r.asked = r.asked, 0
				r.bucket.Answer(s.now+r.skew, answer)
			}
		}
		for _, a := range r.bucket.Actions(s.now + r.skew) {
			s.send(r, a)
		}
	}
}

// callStore simulates a slice of the RLS callers of a replica.
func (s *sim) callStore(r *simReplica) {
	r.part += r.calls * float64(slice) / float64(second)
	n := uint64(r.part)
	r.part -= float64(n)
	if n == 0 || r.dead || s.store.down {
		return
	}
	r.asked += n
	granted := float64(s.store.take(s.now, n))
	s.byRLS += granted
	s.admitted[len(s.admitted)-1] += granted
	s.count(granted, 0)
}

// owe tracks the debts of replicas to an unavailable store, which others may take before they are debited.
func (s *sim) owe() {
	sum := 0.0
	for _, r := range s.replicas {
		if !r.dead {
			sum += max(0, -r.bucket.Status().Leased)
		}
	}
	s.owed = max(s.owed, sum)
}

// send sends an action to its client.
func (s *sim) send(r *simReplica, a shares.Action) {
	c := s.client(a.Client)
	s.sent++
	s.longest = max(s.longest, a.TTL)
	s.tell(a.Client, describe(a))
	if !c.alive || !c.open || s.replicas[c.replica] != r {
		return
	}
	c.late = max(c.late, s.now+s.delay())
	c.inbox = append(c.inbox, simMessage{at: c.late, action: a})
}

// tell reports an event to the script.
func (s *sim) tell(client, what string) {
	if s.seen != nil {
		s.seen(s.names[[]rune(client)[0]-0x4e00], what)
	}
}

func describe(a shares.Action) string {
	if a.Kind != shares.TokenBucket {
		return fmt.Sprintf("← %v for %d s", a.Kind, a.TTL)
	}
	return fmt.Sprintf("← %.2f a second, %d tokens, for %d s", float64(a.TokensPerFill)/float64(a.FillInterval), a.MaxTokens, a.TTL)
}

// used returns the part of the limit that was used between two times.
func (s *sim) used(from, to shares.Micros) float64 {
	i, j := s.index(from), s.index(to)
	sum := 0.0
	for _, n := range s.admitted[i:j] {
		sum += n
	}
	return sum / (s.limit.rate() * float64(j-i) * float64(slice) / float64(second))
}

func (s *sim) index(t shares.Micros) int {
	return min(max(len(s.admitted)-int((s.now-t)/slice), 0), len(s.admitted))
}

// reaches returns the time until 95 % of the limit were used within a second.
func (s *sim) reaches(from shares.Micros) float64 {
	for t := from; t+second <= s.now; t += slice {
		if s.used(t, t+second) >= 0.95 && s.used(t, min(t+5*second, s.now)) >= 0.95 {
			return float64(t-from) / float64(second)
		}
	}
	return math.Inf(1)
}
