package client

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"strconv"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Result is the decision on one request. Its Status is that of the strictest descriptor: among rejected ones, the one with the longest
// RetryAfter; otherwise the one with the least left. OK is the decision on all descriptors.
type Result struct {
	Status

	// Statuses has one element per descriptor, in the limiter's order.
	Statuses []Status
	// Header contains the headers that the server wants added to the response, set by its variables LIMIT_….
	Header http.Header
	// Body is the body of a rejection, if the server has LIMIT_BODY.
	Body []byte

	knowsTurn bool
}

// Status is the decision on one descriptor. Times are rounded up: to milliseconds if the server has DECISION_METADATA=true, otherwise to
// seconds.
type Status struct {
	OK      bool   // not over the limit; always true for rules in shadow mode
	Limited bool   // a limit applies; if not, the numbers below are meaningless
	Rule    string // path of the rule, such as shop.user, with DECISION_METADATA; otherwise its name, which may be empty

	Limit     uint32        // hits in each Window
	Window    time.Duration // a month counts as 30 days, a year as 365
	Remaining uint32        // hits left; 0 if rejected

	ResetAfter time.Duration // until the counter is as if unused; for a rejection without DECISION_METADATA, the same as RetryAfter
	RetryAfter time.Duration // until the same request would be admitted; 0 if it was; with DECISION_METADATA, [Never] if it cannot be
	Wait       time.Duration // until the turn of hits admitted to a queue (leaky_bucket); see [Limiter.Wait]
}

// Never is the RetryAfter of a request for more hits than the limit ever admits.
const Never = time.Duration(math.MaxInt64)

func resultOf(a *rls.RateLimitResponse) Result {
	r := Result{Header: http.Header{}, Body: a.GetRawBody(), knowsTurn: true}
	told := a.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
	over := a.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT
	var wait time.Duration
	any := false
	for i, s := range a.GetStatuses() {
		var fields map[string]*structpb.Value
		if i < len(told) {
			fields = told[i].GetStructValue().GetFields()
		}
		st := statusOf(s, fields)
		r.Statuses = append(r.Statuses, st)
		known := st.Limited || !st.OK // the limit is missing from a rejection if the rule has headers: off
		r.knowsTurn = r.knowsTurn && (!known || fields["wait_ms"] != nil)
		wait = max(wait, st.Wait)
		stricter := cmp.Or(cmp.Compare(r.RetryAfter, st.RetryAfter), cmp.Compare(st.Remaining, r.Remaining)) < 0
		if known && (stricter || !any) {
			r.Status, any = st, true
		}
	}
	for _, h := range a.GetResponseHeadersToAdd() {
		r.Header.Add(h.GetKey(), cmp.Or(h.GetValue(), string(h.GetRawValue())))
	}
	r.OK, r.Wait = !over, wait
	return r
}

// statusOf converts a status and the decision's fields in the server's dynamic metadata.
func statusOf(s *rls.RateLimitResponse_DescriptorStatus, fields map[string]*structpb.Value) Status {
	const h = time.Hour
	units := [9]time.Duration{1: time.Second, 2: time.Minute, 3: h, 4: 24 * h, 5: 720 * h, 6: 8760 * h, 7: 168 * h} // by their numbers in the protocol
	limit, reset := s.GetCurrentLimit(), s.GetDurationUntilReset().AsDuration()
	st := Status{
		OK:         s.GetCode() != rls.RateLimitResponse_OVER_LIMIT,
		Limited:    limit != nil,
		Rule:       cmp.Or(fields["rule"].GetStringValue(), limit.GetName()),
		Limit:      limit.GetRequestsPerUnit(),
		Window:     units[min(uint(limit.GetUnit()), 8)] * time.Duration(max(1, limit.GetUnitMultiplier().GetValue())),
		Remaining:  s.GetLimitRemaining(),
		ResetAfter: reset,
		RetryAfter: reset,
	}
	if fields["wait_ms"] != nil {
		ms := func(name string) time.Duration {
			return time.Duration(fields[name].GetNumberValue()) * time.Millisecond
		}
		st.ResetAfter, st.RetryAfter, st.Wait = ms("reset_after_ms"), ms("retry_after_ms"), ms("wait_ms")
		if fields["retry_after_ms"] == nil {
			st.ResetAfter, st.RetryAfter = reset, Never
		}
	}
	if st.OK {
		st.RetryAfter = 0 // also for a rule in shadow mode
	}
	return st
}

// headers returns the headers of a response. Those of the server take precedence.
func (r *Result) headers() http.Header {
	h := http.Header{}
	set := func(name string, n int64) { h.Set(name, strconv.FormatInt(n, 10)) }
	reset := cmp.Or(r.RetryAfter, r.ResetAfter)
	if reset == Never {
		reset = r.ResetAfter
	}
	if draft := r.Header.Get("RateLimit-Policy") != ""; r.Limited && !draft {
		set("RateLimit-Limit", int64(r.Limit))
		set("RateLimit-Remaining", int64(r.Remaining))
		set("RateLimit-Reset", ceil(reset, time.Second))
	}
	if r.Limited && !r.OK && r.RetryAfter != Never {
		set("Retry-After", max(1, ceil(r.RetryAfter, time.Second)))
	}
	if r.OK && r.Wait > 0 {
		set("RateLimit-Wait", ceil(r.Wait, time.Millisecond))
	}
	maps.Copy(h, r.Header)
	return h
}

// ceil returns d in units, rounded up.
func ceil(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }
