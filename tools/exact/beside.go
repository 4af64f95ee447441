package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// Constants of besideCallers.
const (
	besideRate  = 100 // hits per second of the token bucket
	besideBurst = 100
	besideAhead = 1.3 // permitted excess E in seconds of the rate, plus a hit per Envoy: shares paid in advance, and their tokens

	besideEnvoys = 4
	besideIdle   = 2   // requests per second of an idle Envoy
	besideFlood  = 200 // requests per second in a flood
	floodFor     = 4800 * time.Millisecond
	besideFloods = 4
	besideBegins = 3 // reports before the first flood
)

// besideCallers combines Envoys that are mostly idle, and flood the limit right after some reports, with callers that always ask
// for everything. Together they may be admitted burst + rate × time + E.
func besideCallers(t *trial) error {
	rule := fmt.Sprintf("{key: k, rate_limit: {unit: second, requests_per_unit: %d, burst: %d, algorithm: token_bucket, on_failure: deny, rlqs: true}}", besideRate, besideBurst)
	if err := t.serve(quotaReplicas, "beside", rule); err != nil {
		return err
	}
	w := t.joins("beside", "k")
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	demand, together, pause := float64(90+t.IntN(31)), t.odds(50), 1+t.IntN(2)
	for _, r := range t.all {
		w.call(ctx, demand/quotaReplicas, r)
	}
	begin := now()
	for i := range besideEnvoys {
		if !together {
			t.rest(t.between(0, rlqstest.EnvoyEvery/besideEnvoys))
		}
		e := w.envoy(ctx, besideIdle, t.all[i%quotaReplicas])
		w.all.Go(func() { e.floods(ctx, pause) })
	}
	t.rest(rlqstest.EnvoyEvery * time.Duration(besideBegins+besideFloods*(1+pause)))
	cancel()
	w.all.Wait()
	t.judgeBeside(w, begin, fmt.Sprintf("callers want %.0f a second, Envoys flood every %d reports, all at once %t", demand, 1+pause, together))
	return nil
}

// floods makes an Envoy flood the limit right after a report, and then pause for a number of reports.
func (e *envoy) floods(ctx context.Context, pause int) {
	for n := 0; ; n++ {
		select {
		case <-e.reported:
		case <-ctx.Done():
			return
		}
		if n < besideBegins || (n-besideBegins)%(1+pause) != 0 {
			continue
		}
		e.Want(besideFlood)
		select {
		case <-time.After(floodFor):
		case <-ctx.Done():
		}
		e.Want(besideIdle)
	}
}

// judgeBeside checks every span of time.
func (t *trial) judgeBeside(w *crowd, begin proof.Micros, how string) {
	end := now()
	worst := worstStretch(w.limited(), besideRate)
	over, ahead := worst.excess-besideBurst, besideAhead*besideRate+besideEnvoys
	lasts := secondsOf(end - begin)
	envoys, asked := w.count(begin, end, anEnvoy), w.count(begin, end, aCaller)
	t.says("%s", how)
	t.says("at worst %+.0f beyond burst + rate × time, where E has %.0f: %d hits in %.2f s, from %s s on",
		over, ahead, worst.admitted, secondsOf(worst.to-worst.from), seconds(worst.from-begin))
	t.says("in %.0f s Envoys were admitted %.1f a second, and %d in all without an assignment, and callers %.1f", lasts,
		float64(envoys.admitted)/lasts, envoys.free, float64(asked.admitted)/lasts)
	if over > ahead {
		t.finds("%s: %d hits were admitted in %.2f s, which is %.0f beyond burst + rate × time, where E has %.0f", how, worst.admitted,
			secondsOf(worst.to-worst.from), over, ahead)
		t.trails(w, "from 10 s before", worst.from-micros(2*rlqstest.EnvoyEvery), worst.to)
	}
}
