package overload

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	margin       = 2 * time.Millisecond  // what an answer needs to get to its caller
	percent      = 15                    // per cent of its caller's patience that a call may take from its turn to its answer
	pacedPercent = 6                     // the same while calls of domains below their share go first, which wait for what goes on
	farPart      = 4                     // one in so many parts of its caller's time at most is a call's way to the store
	enough       = 40 * time.Millisecond // patience beyond which a caller has no influence on that
	forever      = time.Hour             // the most that is counted of patience
	recent       = time.Second           // what the least of that is taken from, once or twice
	atOnce       = 8                     // a call that takes less than one in so many of the average asked no store
	firstRoom    = 64                    // the room to begin with
	leastRoom    = 4                     // the least room
	extraRoom    = 16                    // beyond it, for calls of domains that take less than their share
	mostRoom     = 4096                  // the most room
	averages     = 8                     // turns, and four times as many calls, of which moving averages are made
	slack        = Unloaded / 2          // between two turns, if there is time for everybody
	starved      = 4 * settle            // with nothing decided although calls wait
	nap          = time.Millisecond      // when there is no room for those that wait
	answering    = 20 * time.Microsecond // what a policy's answer takes of a processor, where it takes long
	haste        = 10 * time.Millisecond // patience, up to enough, of callers whose number says that there is not even time for that
	shortLine    = 64                    // calls that may wait, however little room there is: with it, about as many as there are workers
	mostBytes    = 64 << 20              // of messages that wait
)

// A call without a decision has been read and has to be answered, which takes a fifth to a half of the time of a decision. With
// too many of them little else would be done, so then fewer calls are read. Two for a decision are not too many: what is
// refused unread is an error, which Envoy lets pass. But more than three for two are, for a domain that takes more than its share from
// others, or if there is not even time for policies; and more than one for two, where who is refused unread gets the same, for less of the
// time.
const (
	earned     = 60 // by a decision
	earnedVain = earned / 4
	cost       = earned / 2
	costBad    = earned * 2 / 3
	debt       = 1024 * cost // for a moment
)

// credit is what decisions have earned, less what calls without one have cost, of those that lose something if they are refused unread, and
// of those that do not. They have one each, so that what has been earned is not spent on the others; but where either has none left, the limit
// is lowered that all have.
type credit [2]int

func (c *credit) of(p *place) *int {
	if p.Cheap {
		return &c[1]
	}
	return &c[0]
}

// line is where calls wait for their turn once this process is busy. As long as anybody waits, nobody goes on without a turn
// but those whose domains take less than their share.
type line struct {
	gate    *Gate
	poller  *poller
	kick    chan struct{} // there is room again
	open    atomic.Bool   // somebody waits
	paced   atomic.Bool   // all are worked on a portion at a time
	pace    atomic.Int64  // what lap is, for those without the lock
	hurry   atomic.Int64  // what patient is, for them
	places  sync.Pool     // of *place
	readers readers

	mu      sync.Mutex
	calls   []*place // in the order in which they came
	goes    []given  // turns of calls that go on, to be handed out
	others  []given  // turns of those that are dismissed, to be handed out when there are none of these
	bytes   int      // of the messages of all of them
	owed    int      // what the turns that are to be handed out count for
	working int      // calls that go on
	room    int      // how many may
	soon    int      // how many of them were answered soon since room was last raised
	cut     time.Time
	opened  time.Time // each turn since then has found somebody
	rushed  bool      // there is not time for all
	changed time.Time // when that last changed
	lately  lately    // what says so
	passed  time.Time // when a call was last dismissed, for whatever reason
	vain    int       // how many wait for whom it stands
	hasty   int       // how many wait with little patience
	ahead   time.Time // when a call last went first although others waited
	fed     time.Time // when calls last went on, or were in progress
	credit  credit
	flow    flow
	lap     time.Duration    // between two turns, on average
	way     time.Duration    // what a store takes at least
	step    time.Duration    // between two looks at what can be read, on average
	took    time.Duration    // from a call's turn to its answer, on average
	patient time.Duration    // how long callers wait, on average
	floor   [2]time.Duration // the least that a call took, now and before
	floored time.Time        // when that was last begun anew
	napping bool
}

// place is that of a call in a line.
type place struct {
	Call

	patience time.Duration // from its headers to its deadline
	came     time.Time     // to the line
	turn     chan Turn
}

// given is a turn that is to be handed out.
type given struct {
	to   *place
	turn Turn
}

// Verdict says what is to become of a call.
type Verdict uint8

// The verdicts.
const (
	Go   Verdict = iota // decide it
	Late                // have policies decide it
	Lost                // refuse it: there is not even time for that
)

// Turn is what became of a call that waited; the zero value is that of one that need not.
type Turn struct {
	Verdict Verdict
	Answer  time.Duration // how long its answer will wait in this process

	counted bool
	at      time.Time
}

func (l *line) init(g *Gate) {
	l.gate, l.poller, l.room, l.kick = g, newPoller(), firstRoom, make(chan struct{}, 1)
	l.readers.joined = make(chan struct{}, 1)
	l.places.New = func() any { return &place{turn: make(chan Turn, 1)} }
}

// wait waits for the turn of a call.
func (l *line) wait(c Call) Turn {
	p := l.places.Get().(*place)
	p.Call, p.patience = c, min(time.Until(c.Deadline), forever)+min(c.Waited, forever)
	t, now := l.enter(p)
	if !now {
		t = <-p.turn
	}
	p.Call = Call{}
	l.places.Put(p)
	return t
}

// enter puts a call in the line unless its turn is now.
func (l *line) enter(p *place) (t Turn, now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.patient += (min(p.patience, enough) - l.patient) / (4 * averages)
	at := time.Now()
	p.came = at
	switch {
	case l.first(p, at):
		if l.gate.shares.wellUnder(p.Domain) {
			l.ahead = at
		}
		return l.admit(p, at), true
	case l.bytes > mostBytes || l.excess(p, at):
		return l.dismiss(p, at), true
	}
	l.calls = append(l.calls, p)
	l.bytes += p.Size
	if !l.open.Load() {
		l.open.Store(true)
		l.opened, l.fed = at, at
		if at.Sub(l.passed) > healed {
			l.credit = credit{} // that was another surge
		}
		go l.run()
	}
	l.count(p, at)
	if tooMany(l.hasty, p.patience) { // the next turn comes once all that has arrived is read, which is late then
		l.gate.lower(at, max(l.room, 2*workers)) // further, if it is too much still, only once turns show what has become of it
	}
	return Turn{}, false
}

// first reports whether a call goes on without a turn: if its domain takes less than its share, and there is time to decide it. For a
// few of them, extraRoom or more, there is room in any case.
func (l *line) first(p *place, now time.Time) bool {
	return l.working < l.room+max(l.room/4, extraRoom) && l.gate.shares.under(p.Domain) && p.Deadline.Sub(now) >= l.step+l.decide(l.step)
}

// admit has a call go on.
func (l *line) admit(p *place, now time.Time) Turn {
	l.gate.shares.add(now.Sub(l.gate.begun), p.Domain, p.Size)
	l.working++
	l.lately.went++
	l.flow.calls++
	of := l.credit.of(p)
	*of = min(*of+earns(p), debt)
	return Turn{Verdict: Go, Answer: l.step, counted: true, at: now}
}

// run has everything read that has arrived, and gives turns, until nobody waits any more.
func (l *line) run() {
	timer := time.NewTimer(nap)
	defer timer.Stop()
	spare := 0
	for last := time.Now(); ; {
		l.round()
		now := time.Now()
		more, full := l.turns(now, now.Sub(last), spare)
		if !more {
			return
		}
		if last, spare = now, 0; full {
			timer.Reset(nap)
			spare = l.rest(timer)
			last = time.Now()
		}
	}
}

// rest waits until there is room, or something to work on, or for the timer, and returns how many may go on beyond the room.
func (l *line) rest(timer *time.Timer) (spare int) {
	select {
	case <-l.kick:
	case <-l.readers.joined:
	case <-timer.C:
		return leastRoom // this process has nothing to do: it is the store that takes long
	}
	return 0
}

// round has everything read that has arrived. While calls go first, that and the turns that were given are worked on a portion at a time:
// between two of them there is time for whoever goes first.
func (l *line) round() {
	begun := time.Now()
	budget := l.begin(begun)
	l.poller.pass()
	if budget == 0 {
		return
	}
	l.readers.begin()
	for at := begun; ; l.poller.pass() {
		now := time.Now()
		if !l.next(budget, now.Sub(at)) || now.Sub(begun) > longest {
			return
		}
		at = now
	}
}

// begin begins a round, and returns how many bytes are a portion; 0 if there are no portions.
func (l *line) begin(now time.Time) (budget int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.ahead) > healed {
		l.unpace()
		return 0
	}
	if !l.paced.Swap(true) {
		l.readers.begin()
	}
	return portion * runtime.GOMAXPROCS(0)
}

// unpace has all go on that was to be worked on a portion at a time.
func (l *line) unpace() {
	if l.paced.Swap(false) {
		l.readers.end()
		l.hand(math.MaxInt)
	}
}

// next has a portion of what was read and of the turns that were given worked on, and reports whether there is more of it. It took so long
// since the last one: where something else takes the processor, there are few portions, and each is larger.
func (l *line) next(budget int, took time.Duration) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step += (took - l.step) / averages
	if took > settle {
		budget *= int(took / Unloaded)
	}
	l.hand(max(budget, l.owed/parts))
	more = l.readers.next(portions * budget)
	return more || len(l.goes)+len(l.others) > 0
}

// hand hands out turns of so many bytes.
func (l *line) hand(bytes int) {
	for _, all := range []*[]given{&l.goes, &l.others} {
		n := 0
		for ; n < len(*all) && bytes > 0; n++ {
			g := (*all)[n]
			size := g.to.Size
			l.bytes -= size
			l.owed -= size + each
			bytes -= size + each
			g.to.turn <- g.turn
		}
		*all = slices.Delete(*all, 0, n)
	}
}

// turns gives turns to those whose it is, and to as many as are to spare beyond the room. If not more, nobody waited; if full,
// nobody had a turn, for want of room.
func (l *line) turns(now time.Time, lap time.Duration, spare int) (more, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lap += (lap - l.lap) / averages
	l.pace.Store(int64(l.lap))
	l.hurry.Store(int64(l.patient))
	if !l.paced.Load() {
		l.step = l.lap
	}
	if len(l.calls) == 0 {
		if l.opened = now; len(l.goes)+len(l.others) == 0 {
			l.open.Store(false)
			l.unpace()
			l.gate.raise(now, 0, true)
			return false, false
		}
	}
	l.way = min(l.gate.config.Way(), l.patient/farPart)
	idle := l.lap < slack
	l.flow.measure(now)
	shed := l.shed(now)
	l.judge(now)
	went := l.proceed(now, max(l.room, l.working+spare))
	shed += l.weed(now)
	l.account(now, idle)
	switch {
	case went > 0 || l.working > 0:
		l.fed = now
	case shed > 0 && now.Sub(l.fed) > starved && !idle:
		l.starve(now)
	}
	if shed == 0 && len(l.calls) == 0 && !l.paced.Load() && !l.gate.Limited() && !l.gate.shares.several() {
		l.open.Store(false) // there was room for all: whoever comes goes on without a turn, which costs less
		return false, false
	}
	l.gate.raise(now, went, now.Sub(l.passed) > healed)
	l.napping = shed+went+len(l.goes)+len(l.others) == 0
	return true, l.napping
}

// give gives a call its turn. It is to be taken out of the line, and p is another call's from when the turn is handed out.
func (l *line) give(p *place, t Turn) {
	if !l.paced.Load() {
		l.bytes -= p.Size
		p.turn <- t
		return
	}
	l.owed += p.Size + each
	if t.Verdict == Go {
		l.goes = append(l.goes, given{p, t})
	} else {
		l.others = append(l.others, given{p, t})
	}
}

// dismiss returns the turn of a call for which there is no time: policies decide it, unless there is not even time for that.
func (l *line) dismiss(p *place, now time.Time) Turn {
	l.passed = now
	l.gate.shares.dismissed(now.Sub(l.gate.begun), p.Domain, p.Size)
	if l.left(p, now) < margin/2+l.lap {
		*l.credit.of(p) -= costBad
		return Turn{Verdict: Lost}
	}
	*l.credit.of(p) -= l.cost(p)
	return Turn{Verdict: Late, Answer: l.step}
}

// left returns how much time a call has. Nobody knows how long it waited before its headers were read, but it was not longer than
// between two turns.
func (l *line) left(p *place, now time.Time) time.Duration { return p.Deadline.Sub(now) - l.lap }

// decide returns how long a decision takes, if it is not one that nearly all are faster than, and its answer is written so late.
func (l *line) decide(answer time.Duration) time.Duration {
	long := max(2*l.patient*percent/100, Unloaded) // for a while; whether there is time for a store that takes longer is for it to say
	return margin + answer + 5*min(l.took, long)/4
}

// shed dismisses those for which there is no time, and returns how many there were.
func (l *line) shed(now time.Time) (turns int) {
	decide := l.decide(l.lap)
	kept := l.calls[:0]
	for _, p := range l.calls {
		if l.left(p, now) < decide {
			l.press(p, now, decide)
			l.give(p, l.dismiss(p, now))
			turns++
		} else {
			kept = append(kept, p)
		}
	}
	clear(l.calls[len(kept):])
	l.calls = kept
	return turns
}

// account has fewer calls read if those without a decision are too many for what else is done, and nobody is idle.
func (l *line) account(now time.Time, idle bool) {
	for i, c := range l.credit {
		switch {
		case idle:
			l.credit[i] = max(c, 0)
		case c < -debt:
			l.credit[i] = -debt * 7 / 8 // not again at the next turn
			l.gate.lower(now, l.lowest())
		}
	}
}

// starve has fewer calls read, and room for fewer: so many answers by policy are in the way that there is no time left for a
// decision, from which alone anything would be learnt.
func (l *line) starve(now time.Time) {
	if now.Sub(l.cut) > settle {
		l.room, l.soon, l.cut = max(leastRoom, l.room*7/8), 0, now
	}
	l.gate.lower(now, l.lowest())
}

// earns returns what the decision of a call earns.
func earns(p *place) int {
	if p.Cheap {
		return earnedVain
	}
	return earned
}

// cost returns what it costs to have policies decide a call.
func (l *line) cost(p *place) int {
	if l.gate.shares.over(p.Domain) {
		return costBad
	}
	return cost
}

// brisk returns how long a call may take from its turn to its answer. More of them at once share more of what they cost; but
// those that come next wait meanwhile, and take as long themselves. The way to a store costs nothing, nor does waiting for half of it.
func (l *line) brisk() time.Duration {
	share := time.Duration(percent)
	if l.paced.Load() {
		share = pacedPercent
	}
	return max(l.patient*share/100, Unloaded) + l.way*3/2
}

// learn notes the least that a call takes. Those that the near cache answers, and whose callers have gone, say nothing of it.
func (l *line) learn(took time.Duration, now time.Time) {
	switch {
	case took*atOnce < l.took:
	case now.Sub(l.floored) > recent:
		l.floor[0], l.floor[1], l.floored = took, l.floor[0], now
	default:
		l.floor[0] = min(l.floor[0], took)
	}
}

// done notes that a call has been decided, or that the store had no time for it, and changes the room by how long that took.
// A store that takes long by itself is no reason to ask it less.
func (l *line) done(t Turn, shed bool, now time.Time) {
	took := now.Sub(t.at)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.working--
	if !shed {
		l.took += (took - l.took) / (4 * averages)
		l.learn(took, now)
	}
	least := l.floor[0]
	if l.floor[1] > 0 {
		least = min(least, l.floor[1])
	}
	switch {
	case !shed && l.took <= max(l.brisk(), 2*least):
		if l.soon++; l.soon >= l.room && len(l.calls) > 0 {
			l.room, l.soon = min(l.room+1+l.room/16, mostRoom), 0
		}
	case now.Sub(l.cut) > max(settle, took):
		l.room, l.soon, l.cut = max(leastRoom, l.room*7/8), 0, now
	}
	if l.napping && l.working < l.room {
		l.napping = false
		signal(l.kick)
	}
}

// signal sends unless something is there already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
