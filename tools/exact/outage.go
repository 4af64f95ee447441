package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// Constants of withoutStore.
const (
	outageLimit  = 600 // hits per minute
	outageEnvoys = 2
	outageDemand = 50 // requests per second of each Envoy

	outageFor  = 30 * time.Second // minimum length
	outageLast = 20 * time.Second // after the window, when earlier assignments have expired
	answerTime = 2 * time.Second  // maximum time to answer a new Envoy: the call to the backend must fail first

	returnCalls = 600             // calls per second when Redis answers again
	returnFor   = 5 * time.Second // duration of these calls
)

// outage is a period without answers from Redis.
type outage struct {
	begin, end proof.Micros
	edge       proof.Micros // end of the window in which the outage begins
	late       proof.Micros // arrival of new Envoys
	spent      int64        // hits debited in the window before the outage
}

// withoutStore tests Envoys that divide a strict limit and allow requests without an assignment. Redis hangs or dies until after
// the end of the window. With on_failure: deny they admit at most the debited hits, then none, and new Envoys are denied. With
// on_failure: allow, everything is admitted then. When Redis answers again, callers ask for everything, and get at most the
// remaining hits.
func withoutStore(t *trial) error {
	rule := func(key string) string {
		return fmt.Sprintf("{key: %s, rate_limit: {unit: minute, requests_per_unit: %d, on_failure: %[1]s, rlqs: true}}", key, outageLimit)
	}
	if err := t.serve(quotaReplicas, "outage", rule("deny"), rule("allow")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	deny, allow := t.joins("outage", "deny"), t.joins("outage", "allow")
	t.rest(t.between(0, 30*time.Second)) // otherwise consecutive runs all start at the same distance from the end of the window
	begin := now()
	for i := range outageEnvoys {
		for _, w := range t.crowds {
			w.envoy(ctx, outageDemand, t.all[i%quotaReplicas])
		}
		t.rest(t.between(0, rlqstest.EnvoyEvery))
	}
	t.rest(t.between(7*time.Second, 12*time.Second))
	kill := t.odds(50)
	o, err := t.cut(deny, kill)
	if err != nil {
		return err
	}
	t.rest(t.between(5*time.Second, 20*time.Second))
	o.late = now()
	for i, w := range t.crowds {
		w.envoy(ctx, outageDemand, t.all[i%quotaReplicas])
	}
	t.rest(max(time.Until(timeOf(o.begin).Add(outageFor)), time.Until(timeOf(o.edge).Add(outageLast+5*time.Second))))
	if o.end = now(); !kill {
		if err := t.comeBack(ctx, deny); err != nil {
			return err
		}
	}
	cancel()
	for _, w := range t.crowds {
		w.all.Wait()
	}
	t.says("Redis is gone %t, at %s s for %.1f s; the window ends after %.1f s", kill, seconds(o.begin-begin), secondsOf(o.end-o.begin), secondsOf(o.edge-o.begin))
	t.judgeDeny(deny, o)
	t.judgeAllow(allow, o)
	return nil
}

// comeBack resumes Redis while callers ask for everything.
func (t *trial) comeBack(ctx context.Context, w *crowd) error {
	ctx, cancel := context.WithTimeout(ctx, returnFor)
	defer cancel()
	for _, r := range t.all[:quotaReplicas] {
		w.call(ctx, returnCalls/quotaReplicas, r)
	}
	err := t.redis.Resume()
	<-ctx.Done()
	return err
}

// cut kills or suspends Redis. It suspends the replicas for a few milliseconds, so that nothing is debited between reading the
// counter and the outage.
func (t *trial) cut(w *crowd, kill bool) (o outage, err error) {
	rules := fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, rate_limit: {unit: minute, requests_per_unit: %d}}\n", w.domain, w.key, outageLimit)
	witness, err := t.add(t.ctx, map[string]string{w.domain: rules}, "NEAR_CACHE_KEYS=0")
	if err != nil {
		return o, err
	}
	for i := range 3 { // the first call connects; calls in flight from replicas arrive before the last one
		if i == 1 {
			for _, r := range t.all[:quotaReplicas] {
				err = errors.Join(err, r.Pause())
			}
		}
		resp, failed := witness.rls.ShouldRateLimit(t.ctx, w.request(0))
		if err = errors.Join(err, failed); err != nil {
			return o, err
		}
		o.spent = outageLimit - int64(resp.GetStatuses()[0].GetLimitRemaining())
	}
	o.begin = now()
	if o.edge = (o.begin/window + 1) * window; kill {
		t.redis.Kill()
	} else {
		err = t.redis.Pause()
	}
	for _, r := range t.all[:quotaReplicas] {
		err = errors.Join(err, r.Resume())
	}
	return o, err
}

// judgeDeny checks the hits with on_failure: deny, which must not exceed the debited ones.
func (t *trial) judgeDeny(w *crowd, o outage) {
	older := func(who int) bool { return anEnvoy(who) && who < outageEnvoys }
	newer := func(who int) bool { return anEnvoy(who) && who >= outageEnvoys }
	before, within := w.count(o.edge-window, o.begin, anEnvoy), w.count(o.begin, o.edge, anEnvoy)
	beyond, last := w.count(o.edge, o.end, anEnvoy), w.count(o.edge+micros(outageLast), o.end, anEnvoy)
	calls := w.count(o.end, o.edge+window, aCaller)
	after := w.count(o.end, o.edge+window, anEnvoy)
	unanswered := w.count(o.late, o.late+micros(answerTime), newer)
	t.says("deny: of %d hits that were debited in the window %d were admitted before, and %d until it ended; the last one %.1f s after Redis was lost",
		o.spent, before.admitted, within.admitted, secondsOf(w.last(o.begin, o.end)-o.begin))
	t.says("deny: then %d were admitted while Redis was lost, %d of them more than %v after that; and from then on to Envoys %d, and to callers %d",
		beyond.admitted, last.admitted, outageLast, after.admitted, calls.admitted)
	t.says("deny: an Envoy that came %.1f s after Redis was lost was admitted %d before it was answered", secondsOf(o.late-o.begin), unanswered.free)
	if sum := before.admitted + within.admitted; sum > o.spent {
		t.finds("on_failure: deny, %d hits had been debited when Redis was lost, and Envoys were admitted %d in that window", o.spent, sum)
	}
	if sum := before.admitted + within.admitted + beyond.admitted; sum > o.spent {
		t.finds("on_failure: deny, %d hits had been debited when Redis was lost, and Envoys were admitted %d in all until it answered", o.spent, sum)
	}
	if sum := beyond.admitted + after.admitted + calls.admitted; sum > outageLimit {
		t.finds("on_failure: deny, and in the window in which Redis answers again %d were admitted of %d", sum, outageLimit)
	}
	if last.admitted > 0 {
		t.finds("on_failure: deny, and Envoys were admitted %d more than %v after the window in which Redis was lost", last.admitted, outageLast)
	}
	if n := w.count(o.begin, o.end, older).free; n > 0 {
		t.finds("on_failure: deny, and Envoys that had assignments when Redis was lost were admitted %d without one", n)
	}
	if n := w.count(o.late+micros(answerTime), o.end, newer).free; n > 0 {
		t.finds("on_failure: deny, and an Envoy that came while Redis was lost was admitted %d without an assignment more than %v later", n, answerTime)
	}
	if len(t.wrong) > 0 {
		t.trails(w, "on_failure: deny, from 15 s before the window ended", o.edge-micros(15*time.Second), o.edge+micros(outageLast))
	}
}

// judgeAllow checks that on_failure: allow rejects nothing.
func (t *trial) judgeAllow(w *crowd, o outage) {
	all := w.count(o.edge+micros(outageLast), o.end, anyone)
	t.says("allow: more than %v after the window %d were admitted and %d rejected", outageLast, all.admitted+all.free, all.rejected)
	if all.rejected > 0 || all.admitted+all.free == 0 {
		t.finds("on_failure: allow, and more than %v after the window in which Redis was lost %d were admitted and %d rejected",
			outageLast, all.admitted+all.free, all.rejected)
		t.trails(w, "on_failure: allow, from the end of the window in which Redis was lost on", o.edge, o.end)
	}
}
