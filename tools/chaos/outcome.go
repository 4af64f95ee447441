package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
	"google.golang.org/grpc/codes"
)

// kind is the kind of a call's outcome.
type kind = calls.Kind

// The kinds of tools/loadgen.
const (
	okay    = calls.OK        // admitted
	over    = calls.OverLimit // rejected
	unknown = calls.Unknown   // answered with code UNKNOWN, which Envoy admits
	failed  = calls.Failed    // ended with a gRPC error
	late    = calls.Late      // not answered in time; given up, as by Envoy
	lost    = calls.Lost      // the connection broke, or there was none
)

// outcome is the result and the timing of a call.
type outcome struct {
	due  time.Duration // due time since the load began
	took time.Duration // time from due to the answer
	lag  time.Duration // delay in the load generator, if its processor was busy
	what int32         // index of the request
	kind kind
	code codes.Code // code of a failed call
}

// end returns the kind of the outcome, or the code of a failed call.
func (o outcome) end() string {
	if o.kind == failed {
		return o.code.String()
	}
	return o.kind.String()
}

// passes reports whether Envoy admits the request. failure_mode_deny decides on errors.
func (o outcome) passes(failureModeDeny bool) bool {
	switch o.kind {
	case okay, unknown:
		return true
	case over:
		return false
	case failed, late, lost, calls.Reset, calls.Kinds:
	}
	return !failureModeDeny
}

// outcomes are the outcomes of a load.
type outcomes []outcome

// between returns the outcomes that were due between two times.
func (all outcomes) between(from, to time.Duration) outcomes {
	return all.that(func(o outcome) bool { return o.due >= from && o.due < to })
}

// that returns the outcomes for which f returns true.
func (all outcomes) that(f func(outcome) bool) (some outcomes) {
	for _, o := range all {
		if f(o) {
			some = append(some, o)
		}
	}
	return some
}

// of returns the outcomes of the given kinds.
func (all outcomes) of(kinds ...kind) outcomes {
	return all.that(func(o outcome) bool { return slices.Contains(kinds, o.kind) })
}

// inTime counts the outcomes of a kind within Envoy's timeout.
func (all outcomes) inTime(k kind) (n int) {
	for _, o := range all {
		if o.kind == k && o.took <= envoyTimeout {
			n++
		}
	}
	return n
}

// share returns some as a share of all; 0 if there are none.
func (all outcomes) share(some int) float64 {
	if len(all) == 0 {
		return 0
	}
	return float64(some) / float64(len(all))
}

// never is the latency of no calls: longer than any required one.
const never = time.Duration(math.MaxInt64 / 4)

// p returns a quantile of the latency, such as 0.99.
func (all outcomes) p(q float64) time.Duration {
	if len(all) == 0 {
		return never
	}
	took := make([]time.Duration, len(all))
	for i, o := range all {
		took[i] = o.took
	}
	return quantile(took, q)
}

// lag returns a quantile of the load generator's delay.
func (all outcomes) lag(q float64) time.Duration {
	lag := make([]time.Duration, len(all))
	for i, o := range all {
		lag[i] = o.lag
	}
	return quantile(lag, q)
}

func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[max(0, int(math.Ceil(q*float64(len(all))))-1)]
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// asEnvoy returns the outcomes as Envoy sees them, with its timeout.
func (all outcomes) asEnvoy() outcomes {
	seen := make(outcomes, len(all))
	for i, o := range all {
		if o.took > envoyTimeout && o.kind != lost {
			o.kind, o.took = late, envoyTimeout
		}
		seen[i] = o
	}
	return seen
}

// through counts the requests that Envoy would have admitted.
func (all outcomes) through(failureModeDeny bool) (n int) {
	for _, o := range all {
		n += boolInt(o.passes(failureModeDeny))
	}
	return n
}

// String summarizes kinds, latency, and the load generator's delay.
func (all outcomes) String() string {
	counts := map[string]int{}
	for _, o := range all {
		counts[o.end()]++
	}
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	var text strings.Builder
	fmt.Fprintf(&text, "%d calls", len(all))
	for _, name := range names {
		fmt.Fprintf(&text, ", %d %s", counts[name], name)
	}
	return fmt.Sprintf("%s, p50 %s, p99 %s, max %s; sent late by %s (p99)", text.String(), ms(all.p(0.5)), ms(all.p(0.99)), ms(all.p(1)), ms(all.lag(0.99)))
}

// ms formats a duration in milliseconds.
func ms(d time.Duration) string {
	if d == never {
		return "of no calls"
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// mb formats a size in megabytes.
func mb(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/(1<<20)) }

func sumOf(all []int) (sum int) {
	for _, n := range all {
		sum += n
	}
	return sum
}
