package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// Constants of floodWindows.
const (
	floodLimit  = 1200 // hits per window
	floodEnvoys = 4
	floodDemand = 100 // requests per second of an Envoy in a flood
	floodLasts  = 5 * time.Second
	floodUses   = 0.7 // minimum used part of the limit

	floodSettle = 5 * time.Second // before the first checked window

	grabExcess = 0.025 // part of the limit that Envoys may admit before they learn that callers have used a window
	grabBefore = 100 * time.Millisecond
	grabAwake  = 3 * time.Millisecond
)

// floodWindows tests strict windows: Envoys flood some for 5 s at intervals, while callers ask for everything. In another one,
// Envoys want everything, while callers take all hits as soon as the window begins. No window may admit more than the limit, and
// most of it must be used.
func floodWindows(t *trial) error {
	every := []time.Duration{15 * time.Second, 30 * time.Second, 60 * time.Second}
	var rules []string
	for i := range every {
		rules = append(rules, fmt.Sprintf("{key: k%d, rate_limit: {unit: minute, requests_per_unit: %d, on_failure: deny, rlqs: true}}", i, floodLimit))
	}
	rules = append(rules, fmt.Sprintf("{key: grabbed, rate_limit: {unit: minute, requests_per_unit: %d, on_failure: deny, rlqs: true}}", floodLimit))
	if err := t.serve(quotaReplicas+1, "floods", rules...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	begin := time.Now().Add(floodSettle).Truncate(time.Minute).Add(time.Minute)
	var how []string
	for i, pause := range every {
		how = append(how, t.flood(ctx, t.joins("floods", fmt.Sprint("k", i)), begin, pause))
	}
	how = append(how, t.grabs(ctx, t.joins("floods", "grabbed"), begin))
	t.rest(time.Until(begin.Add(time.Minute)))
	cancel()
	for i, w := range t.crowds {
		w.all.Wait()
		t.judgeWindow(w, proof.Micros(begin.UnixMicro()), how[i])
	}
	return nil
}

// flood starts Envoys that flood a limit at intervals, and callers. It returns a description.
func (t *trial) flood(ctx context.Context, w *crowd, begin time.Time, every time.Duration) string {
	demand, phase := float64(40+t.IntN(61)), t.between(0, every)
	for _, r := range t.all[:quotaReplicas] {
		w.call(ctx, demand/quotaReplicas, r)
	}
	for k := range floodEnvoys {
		e := w.envoy(ctx, 0, t.all[k%quotaReplicas])
		w.all.Go(func() { e.swell(ctx, begin.Add(-phase), every) })
	}
	return fmt.Sprintf("a flood each %v, first %v before the window, beside %.0f calls a second", every, phase.Round(time.Millisecond), demand)
}

// grabs starts Envoys that want everything from before the window, and callers on another replica that request all hits as soon
// as it begins, possibly before the Envoys' shares are debited. It returns a description.
func (t *trial) grabs(ctx context.Context, w *crowd, begin time.Time) string {
	since, late, calls := t.between(5*time.Second, 50*time.Second), t.between(0, time.Millisecond), pick(t.drawer, 1, 4)
	w.all.Go(func() {
		t.rest(time.Until(begin.Add(-since)))
		for k := range floodEnvoys {
			w.envoy(ctx, floodDemand, t.all[k%quotaReplicas])
		}
		other := t.all[quotaReplicas]
		t.rest(time.Until(begin.Add(-grabBefore)))
		w.ask(ctx, other, 0) // connects
		t.rest(time.Until(begin.Add(late - grabAwake)))
		for time.Until(begin.Add(late)) > 0 { // a sleep would be too late
		}
		for range calls {
			w.all.Go(func() { w.ask(ctx, other, floodLimit/uint64(calls)) })
		}
	})
	return fmt.Sprintf("Envoys from %v before the window on, and %d calls for all of it %v after it begins", since.Round(time.Millisecond), calls, late)
}

// swell makes an Envoy flood the limit at intervals, aligned to the time at.
func (e *envoy) swell(ctx context.Context, at time.Time, every time.Duration) {
	for ctx.Err() == nil {
		since := time.Since(at) % every
		if since < 0 {
			since += every
		}
		next := every - since
		if since < floodLasts {
			next = floodLasts - since
			e.Want(floodDemand)
		} else {
			e.Want(0)
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
		}
	}
}

// judgeWindow checks the hits that a window admitted.
func (t *trial) judgeWindow(w *crowd, begin proof.Micros, how string) {
	end := begin + window
	envoys, asked := w.count(begin, end, anEnvoy), w.count(begin, end, aCaller)
	sum := envoys.admitted + asked.admitted
	t.says("%s: %d of %d, Envoys %d and %d more without an assignment, callers %d", how, sum, floodLimit, envoys.admitted, envoys.free, asked.admitted)
	wrong := len(t.wrong)
	most := int64(floodLimit)
	if asked.admitted == floodLimit { // callers used all of the window, possibly before the debit for Envoys
		most += grabExcess * floodLimit
	}
	if sum > most {
		t.finds("%s: %d of %d hits were admitted in a window", how, sum, floodLimit)
	}
	if least := int64(floodUses * floodLimit); sum < least {
		t.finds("%s: only %d of %d hits were admitted in a window, want %d", how, sum, floodLimit, least)
	}
	if len(t.wrong) > wrong {
		t.trails(w, how+", from 15 s before the window", begin-micros(15*time.Second), end)
	}
}
