package overload

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// TestWait: whoever waits while nobody else does goes on, and when nobody waits any more nobody has to.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 10})
		if !g.Free(Unloaded-1) || g.Free(Unloaded) {
			t.Error("a call is free by how long it has waited")
		}
		for range 100 {
			turn := g.Wait(Call{Waited: 2 * ms, Deadline: time.Now().Add(16 * ms)})
			if turn.Verdict != Go {
				t.Fatalf("a call that waits alone has the turn %+v", turn)
			}
			g.Done(turn, false)
			synctest.Wait()
			if !g.Free(0) {
				t.Fatal("calls have to wait although nobody does")
			}
		}
		if turn := g.Wait(Call{Waited: 2 * ms, Deadline: time.Now().Add(17 * ms)}); turn != (Turn{}) {
			t.Errorf("a call with much time has the turn %+v", turn)
		}
		for _, domain := range []uint32{1, 2} {
			g.shares.add(0, domain, 1)
		}
		turn := g.Wait(Call{Waited: 2 * ms, Deadline: time.Now().Add(32 * ms)})
		if !turn.counted {
			t.Error("beside another domain, a call that has waited for a sixteenth of its time goes on without a turn")
		}
		g.Done(turn, false)
		synctest.Wait()
		if s := g.Stats(); s.Wait < ms || s.Wait > 2*ms {
			t.Errorf("%+v, want a wait of nearly 2 ms", s)
		}
		time.Sleep(time.Second)
		if s := g.Stats(); s != (Stats{Limit: 10}) {
			t.Errorf("at rest: %+v, want no calls and no wait", s)
		}
	})
}

// TestWaitForRoom: calls for which there is no room go on when others are done, and some when nobody is for a while.
func TestWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		begun := time.Now()
		turns := make(chan Turn, 3*firstRoom)
		for range 3 * firstRoom {
			go func() { turns <- g.Wait(Call{Waited: time.Second, Deadline: begun.Add(time.Second)}) }()
		}
		synctest.Wait()
		if len(turns) != firstRoom {
			t.Fatalf("%d calls go on at once, want %d", len(turns), firstRoom)
		}
		g.Done(<-turns, false)
		synctest.Wait()
		if len(turns) != firstRoom {
			t.Errorf("%d calls go on when one is done, want %d", len(turns)+1, firstRoom+1)
		}
		before := g.Stats().Wait
		time.Sleep(10*nap + nap/2) // in which nobody is done
		synctest.Wait()
		if want := firstRoom + 10*leastRoom; len(turns) != want {
			t.Errorf("%d calls go on when the store takes long, want %d", len(turns), want)
		}
		if s := g.Stats(); s.Wait <= before {
			t.Errorf("a wait of %v, and of %v when some have waited for their turn too", before, s.Wait)
		}
		time.Sleep(time.Second)
		for range 3*firstRoom - 1 {
			<-turns
		}
	})
}

// crowded returns a gate whose limit of calls in progress is 20, of 1000, with as many in progress of a client.
func crowded(t *testing.T) (g *Gate, greedy *Client) {
	t.Helper()
	g, greedy = New(Config{MaxCalls: 1000}), new(Client)
	for range 20 {
		g.Enter(greedy)
	}
	g.limit.Store(20)
	g.cut.Store(int64(time.Hour)) // calls are too many all the time
	if !g.Full(greedy, nil, 0) || !g.Full(nil, nil, 0) || !g.Limited() {
		t.Fatalf("not full: %+v", g.Stats())
	}
	return g, greedy
}

// TestClients: beyond the limit a client is let in that has less than its share, or whose calls may be of any domain.
func TestClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, greedy := crowded(t)
		modest := new(Client)
		for n := range 10 {
			if g.Full(modest, nil, 0) {
				t.Fatalf("one of two clients may have no more than %d of 20", n)
			}
			if coming := 10 - n; !g.Full(modest, nil, coming) {
				t.Fatalf("one of two clients that has %d of 20 may have 1 more beside %d that are let in with it", n, coming)
			}
			g.Enter(modest)
			if !g.Full(greedy, nil, 0) {
				t.Fatal("the client that has all is let in")
			}
		}
		if !g.Full(modest, nil, 0) {
			t.Error("a client may have more than its share")
		}
		for range 10 {
			g.Leave(modest)
		}
		time.Sleep(3 * epoch)
		if g.Full(modest, nil, 0) {
			t.Error("a client that is alone may not have what there is")
		}

		g.shares.add(time.Since(g.begun), 1, 1000)
		g.Enter(greedy)
		call := func(domain uint32) Verdict {
			g.limit.Store(20)
			turn := g.Wait(Call{Domain: domain, Deadline: time.Now().Add(20 * ms), Client: greedy})
			g.Done(turn, false)
			synctest.Wait()
			g.limit.Store(20)
			return turn.Verdict
		}
		call(1)
		if !g.Full(greedy, nil, 0) {
			t.Error("a client may be anybody once it has asked for one domain")
		}
		call(2)
		if g.Full(greedy, nil, 0) {
			t.Error("calls are refused unread though they may be of a domain that asks for little")
		}
		if v := call(1); v != Lost {
			t.Errorf("the verdict on a call of the domain that asks for most is %d", v)
		}
		if v := call(2); v != Go {
			t.Errorf("the verdict on a call of the domain that asks for little is %d", v)
		}
		g.line.pace.Store(int64(longest))
		if !g.Full(greedy, nil, 0) {
			t.Error("calls are read to be refused though there is no time for that")
		}
		g.line.pace.Store(0)
		time.Sleep(2 * healed)
		if !g.Full(greedy, nil, 0) {
			t.Error("a client that has asked for nothing for a while may be anybody")
		}
	})
}

// TestSeen: beyond the limit calls are let in of which it has been seen that their domain is below its share, whoever sends them and however
// little time there is to read, but not any number of them. Refusing others counts for their domains, or one that asks for much in vain
// would not be above its share.
func TestSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, greedy := crowded(t)
		g.shares.add(0, 1, 1000)
		g.line.pace.Store(int64(longest))
		loud, quiet := &Seen{Domain: 1, Size: 800}, &Seen{Domain: 2, Size: 800}
		if !g.Full(greedy, loud, 0) {
			t.Error("a call of the domain that asks for all is let in")
		}
		if g.Full(greedy, quiet, 0) {
			t.Error("a call of a domain that has asked for nothing is refused")
		}
		if !g.Full(nil, quiet, 0) {
			t.Error("a call is let in of a client that nobody knows")
		}
		if used := g.shares.used[1].Load(); used != 2*(1001+101) {
			t.Errorf("work for 1001 and a refusal count %d", used)
		}
		g.shares.add(0, 2, 1050)
		if !g.Full(greedy, loud, 0) || g.Full(greedy, quiet, 0) {
			t.Error("what was refused does not count")
		}
		if g.Full(new(Client), loud, 0) {
			t.Error("a client that asks for little is refused for its domain")
		}
		asks := greedy.asks.Load()
		if !g.Full(greedy, &Seen{Domain: 1, Size: 800, asked: true}, 0) || greedy.asks.Load() != asks {
			t.Error("a call counts twice about which it was asked before")
		}
		for g.calls.Load() < heard*workers-1 {
			g.Enter(greedy)
		}
		if g.Full(greedy, quiet, 0) {
			t.Error("the last of those that are let in for their domain is refused")
		}
		if !g.Full(greedy, quiet, 1) {
			t.Error("any number of calls is let in for their domain together")
		}
		g.Enter(greedy)
		if !g.Full(greedy, quiet, 0) {
			t.Error("any number of calls is let in for their domain")
		}
		for g.calls.Load() < int64(g.config.MaxCalls) {
			g.Enter(greedy)
		}
		if !g.Full(new(Client), quiet, 0) {
			t.Error("more calls are let in than there may ever be")
		}
	})
}

// TestSeemed: a call beyond the limit that is of another domain than it seemed to be is refused, unless that is below its share, too, and
// counts for the domain it is of.
func TestSeemed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, greedy := crowded(t)
		g.shares.add(0, 1, 1000)
		for name, c := range map[string]struct {
			domain, seemed uint32
			want           Verdict
		}{
			"as it seemed":                  {1, 1, Go},
			"of one below its share":        {2, 3, Go},
			"of one that asks for too much": {1, 2, Lost},
		} {
			g.Enter(greedy)
			g.limit.Store(20)
			turn := g.Wait(Call{Domain: c.domain, Size: 80, Deadline: time.Now().Add(20 * ms), Client: greedy, Seen: &Seen{Domain: c.seemed}})
			if g.Done(turn, false); turn.Verdict != c.want {
				t.Errorf("%s: verdict %d, want %d", name, turn.Verdict, c.want)
			}
			greedy.mixed.Store(0)
		}
		if used := g.shares.used[1].Load(); used != 2*(1001+11) {
			t.Errorf("work for 1001 and a refusal count %d", used)
		}
	})
}

// TestClientsOfTwoEpochs: where a client meets the limit just before the end of an epoch of which another one knows already, both are
// counted, and nothing panics.
func TestClientsOfTwoEpochs(t *testing.T) {
	t.Parallel()
	g, late, early := New(Config{MaxCalls: 10}), new(Client), new(Client)
	g.asking(early, 1)
	for epoch := int64(2); epoch < 100; epoch++ {
		if n := g.asking(early, epoch); n < 1 || n > 2 {
			t.Fatalf("%d clients met the limit, want one or two", n)
		}
		if n := g.asking(late, epoch-1); n != 2 {
			t.Fatalf("%d clients met the limit, want 2", n)
		}
		if late.asks.Load() > 2 || early.asks.Load() > 2 || g.asks.Load() > 4 {
			t.Fatalf("nothing is forgotten: %d and %d of %d", late.asks.Load(), early.asks.Load(), g.asks.Load())
		}
	}
}

// TestCredit: for a decision two calls may be answered by policies, or one for two where refusing them unread comes to the same; and a call for
// which there is not even time for that costs as much of the same account as more than one of them.
func TestCredit(t *testing.T) {
	t.Parallel()
	l := &New(Config{MaxCalls: 1000}).line
	for cheap, answers := range map[bool]int{false: 8, true: 2} {
		p := &place{Call: Call{Cheap: cheap, Deadline: time.Now().Add(time.Hour)}}
		for range 4 {
			l.admit(p, time.Now())
		}
		for range answers {
			l.dismiss(p, time.Now())
		}
		if c := *l.credit.of(p); c != 0 {
			t.Errorf("after 4 decisions and %d answers (cheap: %t) %d is left", answers, cheap, c)
		}
		p.Deadline = time.Now()
		if turn := l.dismiss(p, time.Now()); turn.Verdict != Lost || *l.credit.of(p) != -costBad {
			t.Errorf("verdict %d costs %d, want %d and %d", turn.Verdict, -*l.credit.of(p), Lost, costBad)
		}
		*l.credit.of(p) = 0
	}
}

// TestLimit: where there are many more calls without a decision than others, fewer are let in; and more again when there are not.
// Of those that policies can but fail, and of the others, there may be as many.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		l.room, l.working = 0, 1
		l.lap = slack / 2
		for range 800 {
			g.Enter(nil)
		}
		late := func(calls int, fails bool, lap time.Duration) {
			for range calls {
				enter(l, Call{Deadline: time.Now().Add(3 * ms), Cheap: fails})
			}
			l.turns(time.Now(), lap, 0)
			time.Sleep(2 * settle)
		}
		for range 50 {
			late(200, true, 0)
		}
		late(0, true, 0) // the last of them
		if s := g.Stats(); s.Limit != 1000 {
			t.Fatalf("with time for everybody the limit is %d", s.Limit)
		}
		l.lap = slack * 3 / 2
		if late(1024, false, ms); g.Stats().Limit != 1000 {
			t.Errorf("after 1,024 answers by policy: %+v, want a limit of 1000", g.Stats())
		}
		if late(1, false, ms); g.Stats().Limit != 700 {
			t.Errorf("after one more: %+v, want a limit of 700", g.Stats())
		}
		if late(128, false, ms); g.Stats().Limit != 700 {
			t.Errorf("after 128 answers: %+v, want a limit of 700", g.Stats())
		}
		if late(1, false, ms); g.Stats().Limit != 612 {
			t.Errorf("after one more: %+v, want a limit of 612", g.Stats())
		}
		if late(1024, true, ms); g.Stats().Limit != 612 {
			t.Errorf("after 1,024 errors: %+v, want a limit of 612", g.Stats())
		}
		if late(1, true, ms); g.Stats().Limit != 535 {
			t.Errorf("after one more: %+v, want a limit of 535", g.Stats())
		}
		g.shares.add(time.Since(g.begun), 0, 1000)
		if late(60, false, ms); g.Stats().Limit != 535 {
			t.Errorf("after 60 answers to the only domain: %+v, want a limit of 535", g.Stats())
		}
		g.shares.add(time.Since(g.begun), 1, 1)
		if late(45, false, ms); g.Stats().Limit != 535 {
			t.Errorf("after 45 answers to a domain that takes more than its share: %+v, want a limit of 535", g.Stats())
		}
		if late(8, false, ms); g.Stats().Limit != 468 {
			t.Errorf("after 8 more: %+v, want a limit of 468", g.Stats())
		}
		for range 100 {
			late(200, true, ms)
		}
		if s := g.Stats(); s.Limit != least || !g.Full(nil, nil, 0) {
			t.Errorf("after 100 times as many: %+v, want a limit of %d", s, least)
		}
		l.turns(time.Now(), ms, 0) // nobody waits
		if s := g.Stats(); s.Limit != least+2 {
			t.Errorf("when nobody waits the limit is %d, want %d", s.Limit, least+2)
		}
		time.Sleep(healed)
		if g.Full(nil, nil, 0) { // though nobody has waited since, so that there was no turn
			t.Error("calls are refused a second after the last one that was too many")
		}
		if s := g.Stats(); s.Limit != 1000 {
			t.Errorf("a second later the limit is %d, want 1000", s.Limit)
		}
	})
}

// TestShares: a domain has its share of what was done of late, and it is forgotten.
func TestShares(t *testing.T) {
	t.Parallel()
	var s shares
	now := time.Duration(0)
	for range 300 {
		s.add(now, 1, 16)
		s.add(now, 2, 1)
		now += ms
	}
	for range 1000 {
		s.add(now, 0, 0) // an empty message
	}
	if s.under(1) || !s.under(2) || !s.under(3) {
		t.Error("want 1 above its share, and 2 and 3 below")
	}
	now += time.Second
	s.add(now, 2, 1)
	if !s.under(1) || s.under(2) {
		t.Error("a second later, want 1 below its share, and 2 above")
	}
}

// TestPass: what has arrived on a connection is read between two turns, though this process is never idle meanwhile.
func TestPass(t *testing.T) { //nolint:paralleltest // the number of processors is everybody's
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := newPoller()
	if p == nil {
		t.Fatal("there is no pipe")
	}
	connection := newPoller() // stands for one: it is read by a goroutine of its own
	read := make(chan struct{}, 1)
	go func() {
		var b [1]byte
		for {
			if _, err := connection.r.Read(b[:]); err != nil {
				close(read)
				return
			}
			read <- struct{}{}
		}
	}()
	slow := 0
	for range 1000 {
		runtime.Gosched() // it waits to read
		if _, err := connection.w.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		p.pass()
		p.pass() // when this returns, whoever could run after the first has run
		if len(read) == 0 {
			slow++
		}
		<-read
	}
	if slow > 10 { // the runtime has done something else
		t.Errorf("%d of 1000 bytes had not been read when all that had arrived should have been", slow)
	}
	if err := connection.w.Close(); err != nil {
		t.Fatal(err)
	}
	<-read
	(*poller)(nil).pass() // where there are no pipes, turns go on all the same
}
