package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// String describes the campaign.
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

// played is a finished campaign.
type played struct {
	*campaign

	events []event
	rounds []*round
	jumped proof.Micros // steps of the wall clock during the campaign
	owing  []string     // errors in the leases of replicas
	leases []leases     // lease metrics of replicas at the end, if nothing died
	named  *named
}

// event is a fault of a replica, or a message.
type event struct {
	at   proof.Micros
	text string
}

// round is a finished game.
type round struct {
	*table

	calls      []proof.Call
	excesses   []*proof.Excess
	mismatches []*proof.Mismatch
	counted    int // number of checked counters
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

// hash derives different random numbers for the games of a campaign.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// files returns the initial rules of replica i.
func (c *campaign) files(i int) map[string]string {
	all := map[string]string{namedDomain: namedRules()}
	for _, g := range c.games {
		all[g.domain] = g.rules[g.serve[i]].yaml(g.domain)
	}
	return all
}

// env returns the environment of replicas. Unless replicas die, a long timeout prevents failures on busy machines.
func (c *campaign) env() []string {
	env := []string{fmt.Sprintf("NEAR_CACHE_LEASES=%v", c.leases)}
	if !c.deadly {
		env = append(env, "REDIS_OP_TIMEOUT="+c.patience().String())
	}
	return env
}

// patience is the timeout of clients. It is shorter if replicas are suspended, so that some answers come too late.
func (c *campaign) patience() time.Duration {
	if c.deadly {
		return 700 * time.Millisecond
	}
	return 10 * time.Second
}

// torment kills and suspends replicas until end. All replicas run afterwards.
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

// settle waits until all leases are refunded, and then reads the counters through an uninvolved replica.
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

// coolDown waits until replicas hold no leases. They refund leases once calls stop.
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

// check checks the calls against the bounds.
func (p *played) check() {
	if p.jumped < -1000 || p.jumped > 1000 { // timestamps are useless
		return
	}
	var wg sync.WaitGroup
	for _, r := range p.rounds {
		wg.Go(func() { r.excesses = proof.Check(r.calls, replicas) })
	}
	wg.Wait()
}
