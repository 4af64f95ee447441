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

// kind is how a call ended.
type kind = calls.Kind

// What tools/loadgen tells apart.
const (
	okay    = calls.OK        // passed
	over    = calls.OverLimit // rejected
	unknown = calls.Unknown   // answered with code UNKNOWN, which Envoy lets pass
	failed  = calls.Failed    // ended in a gRPC error
	late    = calls.Late      // not answered in time, and given up, as Envoy does
	lost    = calls.Lost      // the connection broke, or there was none
)

// outcome is how a call ended, and when.
type outcome struct {
	due  time.Duration // when it should have begun, since the load began
	took time.Duration // from then to the answer
	lag  time.Duration // of the load itself, of which its processor was busy with something else
	what int32         // index of the request
	kind kind
	code codes.Code // of what failed
}

// end returns how the call ended, in a word: the code of what failed.
func (o outcome) end() string {
	if o.kind == failed {
		return o.code.String()
	}
	return o.kind.String()
}

// passes says whether Envoy lets a request pass whose call ended so: it decides on errors by failure_mode_deny.
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

// outcomes are those of a load.
type outcomes []outcome

// between returns those that were due from one time to another.
func (all outcomes) between(from, to time.Duration) outcomes {
	return all.that(func(o outcome) bool { return o.due >= from && o.due < to })
}

// that returns those for which f returns true.
func (all outcomes) that(f func(outcome) bool) (some outcomes) {
	for _, o := range all {
		if f(o) {
			some = append(some, o)
		}
	}
	return some
}

// of returns those that ended in one of kinds.
func (all outcomes) of(kinds ...kind) outcomes {
	return all.that(func(o outcome) bool { return slices.Contains(kinds, o.kind) })
}

// inTime counts those that ended in a kind before Envoy would have given up.
func (all outcomes) inTime(k kind) (n int) {
	for _, o := range all {
		if o.kind == k && o.took <= envoyTimeout {
			n++
		}
	}
	return n
}

// share returns which part of all is some; 0 of none.
func (all outcomes) share(some int) float64 {
	if len(all) == 0 {
		return 0
	}
	return float64(some) / float64(len(all))
}

// never is how long calls took that there were none of: longer than any that is asked for.
const never = time.Duration(math.MaxInt64 / 4)

// p returns a quantile of how long the calls took, such as 0.99.
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

// lag returns a quantile of how late the load itself was.
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

// asEnvoy returns the calls as Envoy sees them: it gives up after its time-out.
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

// through counts the requests that Envoy would have let pass.
func (all outcomes) through(failureModeDeny bool) (n int) {
	for _, o := range all {
		n += boolInt(o.passes(failureModeDeny))
	}
	return n
}

// String returns how many ended how, how long they took, and how much of that was the load's own doing.
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

// ms writes a time in milliseconds.
func ms(d time.Duration) string {
	if d == never {
		return "of no calls"
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// mb writes a size in megabytes.
func mb(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/(1<<20)) }

func sumOf(all []int) (sum int) {
	for _, n := range all {
		sum += n
	}
	return sum
}
