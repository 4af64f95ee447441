package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// String returns the campaign in words.
func (c *campaign) String() string {
	s := fmt.Sprintf("seed %d", c.seed)
	if c.seed == 0 {
		s = "what went wrong in the past"
	}
	if c.deadly {
		s += ", replicas are killed and stopped"
	}
	if !c.leases {
		s += ", without leases"
	}
	return s
}

// played is a campaign that is over.
type played struct {
	*campaign

	events []event
	rounds []*round
	jumped proof.Micros // by which the clock was set in the meantime
	owing  []string     // what is wrong with the leases of replicas
	leases []leases     // what replicas said of their leases at the end, if nothing died
	named  *named
}

// event is what was done to a replica.
type event struct {
	at   proof.Micros
	text string
}

// round is a game that is over.
type round struct {
	*table

	calls      []proof.Call
	excesses   []*proof.Excess
	mismatches []*proof.Mismatch
	counted    int // counters that were accounted for
}

// play plays a campaign on new servers.
func (c *config) play(ctx context.Context, k *campaign, dir string) (*played, error) {
	cl, err := newCluster(ctx, *c, dir)
	if err != nil {
		return nil, err
	}
	defer cl.stop()
	for i := range replicas {
		if _, err := cl.add(ctx, k.files(i), k.env()...); err != nil {
			return nil, err
		}
	}
	p := &played{campaign: k}
	begin, wall := time.Now(), now()
	end := begin.Add(k.lasts)
	var wg sync.WaitGroup
	for _, g := range k.games {
		r := &round{table: newTable(g, cl.all[:replicas], k.patience())}
		p.rounds = append(p.rounds, r)
		wg.Go(func() { r.calls = r.play(ctx, uint64(k.seed)^hash(g.domain), end) })
	}
	p.named = &named{on: cl.all[:replicas], patience: k.patience()}
	wg.Go(func() { p.named.play(ctx, uint64(k.seed), end) })
	if k.deadly {
		p.events, err = k.torment(ctx, cl, end)
	}
	wg.Wait()
	if err != nil || ctx.Err() != nil {
		return nil, errorOf(ctx, err)
	}
	if err := p.settle(ctx, cl); err != nil {
		return nil, err
	}
	p.jumped = now() - wall - proof.Micros(time.Since(begin).Microseconds())
	p.check()
	return p, nil
}

func errorOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// hash makes games of a campaign differ.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// files returns the rules that replica i serves at first.
func (c *campaign) files(i int) map[string]string {
	all := map[string]string{namedDomain: namedRules()}
	for _, g := range c.games {
		all[g.domain] = g.rules[g.serve[i]].yaml(g.domain)
	}
	return all
}

// env returns the environment of replicas. Where nothing dies nothing may fail either, however busy the machine is.
func (c *campaign) env() []string {
	env := []string{fmt.Sprintf("NEAR_CACHE_LEASES=%v", c.leases)}
	if !c.deadly {
		env = append(env, "REDIS_OP_TIMEOUT="+c.patience().String())
	}
	return env
}

// patience is how long a client waits for an answer. It is shorter where replicas stand still, so that some answers
// come too late and others do not.
func (c *campaign) patience() time.Duration {
	if c.deadly {
		return 700 * time.Millisecond
	}
	return 10 * time.Second
}

// torment kills and stops replicas until the end, and has all of them run then.
func (c *campaign) torment(ctx context.Context, cl *cluster, end time.Time) (events []event, err error) {
	d := drawer{rand.New(rand.NewPCG(uint64(c.seed), 2000))}
	rest := func(most time.Duration) bool {
		t := time.Duration(d.Int64N(int64(most)))
		if time.Now().Add(t).After(end) {
			return false
		}
		time.Sleep(t)
		return ctx.Err() == nil
	}
	for rest(1500 * time.Millisecond) {
		i := d.IntN(replicas)
		r := cl.all[i]
		note := func(text string) { events = append(events, event{now(), fmt.Sprintf("replica %d %s", i+1, text)}) }
		if d.odds(50) {
			note("is killed")
			r.Kill()
			if err := r.Start(ctx); err != nil {
				return events, err
			}
			note("is back")
			continue
		}
		note("stands still")
		if err := r.Pause(); err != nil {
			return events, err
		}
		rest(1200 * time.Millisecond)
		note("goes on")
		if err := r.Resume(); err != nil {
			return events, err
		}
	}
	return events, nil
}

// settle waits until all leases are refunded, and asks an uninvolved replica how the counters stand.
func (p *played) settle(ctx context.Context, cl *cluster) error {
	if p.cool && !p.deadly {
		if err := p.coolDown(ctx, cl); err != nil {
			return err
		}
	} else {
		for _, r := range cl.all {
			if _, err := r.Stop(); err != nil {
				return err
			}
		}
	}
	rules := map[string]string{namedDomain: namedRules()}
	for _, r := range p.rounds {
		rules[r.domain] = r.widest().yaml(r.domain)
	}
	witness, err := cl.add(ctx, rules, "NEAR_CACHE_KEYS=0", "REDIS_OP_TIMEOUT=10s")
	if err != nil {
		return err
	}
	for _, r := range p.rounds {
		if r.mismatches, r.counted, err = r.account(ctx, witness, r.calls, p.deadly); err != nil {
			return err
		}
	}
	return p.named.check(ctx, witness)
}

// coolDown waits until replicas hold no leases, which they return when no call asks any more.
func (p *played) coolDown(ctx context.Context, cl *cluster) error {
	const most = 5 * time.Second
	for i, r := range cl.all {
		begin := time.Now()
		for {
			l, err := r.leases(ctx)
			if err != nil {
				return err
			}
			if l.held() == 0 {
				p.leases = append(p.leases, l)
				break
			}
			if time.Since(begin) > most {
				p.owing = append(p.owing, fmt.Sprintf("replica %d still holds %d leased hits, %v after the last call", i+1, l.held(), most))
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// check finds what the calls prove.
func (p *played) check() {
	if p.jumped < -1000 || p.jumped > 1000 { // times mean nothing
		return
	}
	var wg sync.WaitGroup
	for _, r := range p.rounds {
		wg.Go(func() { r.excesses = proof.Check(r.calls, replicas) })
	}
	wg.Wait()
}
