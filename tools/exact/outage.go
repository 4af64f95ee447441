package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// The limit of withoutStore, and what is asked of it.
const (
	outageLimit  = 600 // hits a minute
	outageEnvoys = 2
	outageDemand = 50 // requests a second of each Envoy

	outageFor  = 30 * time.Second // at least
	outageLast = 20 * time.Second // after the window: what was assigned before has run out
	answerTime = 2 * time.Second  // within which an Envoy that is new is answered: the question to the store must fail first

	returnCalls = 600             // a second, of callers when Redis answers again,
	returnFor   = 5 * time.Second // for so long
)

// outage is a time in which Redis does not answer.
type outage struct {
	begin, end proof.Micros
	edge       proof.Micros // when the window ends that it begins in
	late       proof.Micros // when new Envoys came
	spent      int64        // hits that were debited in the window when it began
}

// withoutStore: Envoys that allow what they have no assignment for divide a strict limit, and Redis hangs or is gone until a while after the
// window has ended. Under `on_failure: deny` they admit no more than was debited, and then nothing, and new ones are denied. Under
// `on_failure: allow` all passes then. When Redis answers again, callers want everything at once, and get what is left at most.
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
	t.rest(t.between(0, 30*time.Second)) // else runs one after another are all as long before the end of the window
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

// comeBack has Redis answer again, while callers ask for everything.
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

// cut ends Redis, or has it hang. Replicas stand still for a few milliseconds meanwhile, so that nothing is debited between the look at it
// and the end.
func (t *trial) cut(w *crowd, kill bool) (o outage, err error) {
	rules := fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, rate_limit: {unit: minute, requests_per_unit: %d}}\n", w.domain, w.key, outageLimit)
	witness, err := t.add(t.ctx, map[string]string{w.domain: rules}, "NEAR_CACHE_KEYS=0")
	if err != nil {
		return o, err
	}
	for i := range 3 { // the first one connects, and what replicas have sent comes before the last one
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

// judgeDeny looks at what passed where nothing may that was not debited.
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

// judgeAllow looks at what did not pass where everything is to.
func (t *trial) judgeAllow(w *crowd, o outage) {
	all := w.count(o.edge+micros(outageLast), o.end, anyone)
	t.says("allow: more than %v after the window %d were admitted and %d rejected", outageLast, all.admitted+all.free, all.rejected)
	if all.rejected > 0 || all.admitted+all.free == 0 {
		t.finds("on_failure: allow, and more than %v after the window in which Redis was lost %d were admitted and %d rejected",
			outageLast, all.admitted+all.free, all.rejected)
		t.trails(w, "on_failure: allow, from the end of the window in which Redis was lost on", o.edge, o.end)
	}
}
