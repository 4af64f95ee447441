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

// Result is the answer to one question. Its Status is that of the strictest descriptor: where the answer is no, the one
// that rejects for the longest; otherwise the one with the least left. Its OK is the verdict on all of them.
type Result struct {
	Status

	// Statuses has the answer for each descriptor, in the order in which the limiter has them.
	Statuses []Status
	// Header are the headers that the server asks to add to a response, if it has any of the variables LIMIT_….
	Header http.Header
	// Body is the body of a rejection, where the server has LIMIT_BODY.
	Body []byte

	knowsTurn bool
}

// Status is the answer for one descriptor. Where the server has DECISION_METADATA=true, times are in milliseconds,
// otherwise in seconds; they are rounded up.
type Status struct {
	OK      bool   // it is not over its limit; rules in shadow mode never are
	Limited bool   // a limit applies; if not, the numbers below mean nothing
	Rule    string // the rule's path, such as shop.user, with DECISION_METADATA; otherwise its name, which it may not have

	Limit     uint32        // hits in each Window
	Window    time.Duration // a month counts as 30 days, a year as 365
	Remaining uint32        // hits left; 0 if rejected

	ResetAfter time.Duration // until nothing is spent any more; of a rejection without DECISION_METADATA the same as RetryAfter
	RetryAfter time.Duration // until the same question would pass; 0 if it has, and with DECISION_METADATA [Never] if it never will
	Wait       time.Duration // until the turn of what was admitted to a queue (leaky_bucket); see [Limiter.Wait]
}

// Never is the RetryAfter of a question that can never pass, because it asks for more hits than the limit ever admits.
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
		known := st.Limited || !st.OK // numbers of a limit may be missing, where its rule has headers: off
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

// statusOf converts a status, with what the server's metadata say about its decision.
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
		st.RetryAfter = 0 // also of a rule in shadow mode
	}
	return st
}

// headers returns what a response should tell its caller. What the server asks for replaces what is made here.
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
