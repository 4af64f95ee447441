package rls

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// appendHeaders appends response_headers_to_add and request_headers_to_add.
func (s *Service) appendHeaders(b []byte, v *limiter.Verdict) []byte {
	h := &s.config.Headers
	if h.Enabled && h.Draft {
		b = appendDraft(b, v)
	} else if h.Enabled {
		b = appendNumbers(b, responseHeaders, v, [...]string{h.Limit, h.Remaining, h.Reset})
	}
	if up := &h.Request; up.Enabled {
		b = appendNumbers(b, requestHeaders, v, [...]string{up.Limit, up.Remaining, up.Reset})
	}
	if h.Enabled && !v.Over {
		if wait, ok := longestWait(v); ok {
			b = appendHeader(b, responseHeaders, WaitHeader, ceil(wait, time.Millisecond))
		}
	}
	if h.RetryAfter != "" && v.Over {
		if n := retrySeconds(v); n > 0 {
			b = appendHeader(b, responseHeaders, h.RetryAfter, n)
		}
	}
	if h.Rule != "" {
		b = appendRuleName(b, h.Rule, v)
	}
	if h.Shadow != "" {
		i := slices.IndexFunc(v.Statuses, func(s limiter.Status) bool { return s.Shadowed() })
		b = appendName(b, requestHeaders, h.Shadow, v, i)
	}
	return b
}

// appendNumbers appends three headers to list: the limit, the remaining hits and the time until reset. If no limit is reported, it
// appends nothing.
func appendNumbers(b []byte, list protowire.Number, v *limiter.Verdict, names [3]string) []byte {
	if v.Header < 0 || v.Header >= len(v.Statuses) {
		return b
	}
	st := &v.Statuses[v.Header]
	b = appendHeader(b, list, names[0], int64(st.RateLimit.Number()))
	b = appendHeader(b, list, names[1], int64(remaining(st)))
	if st.Endless() && list == responseHeaders { // the upstream gets it, so that no client can set it
		return b
	}
	return appendHeader(b, list, names[2], st.ResetSeconds())
}

// appendHeader appends a header with a decimal value to list.
func appendHeader(b []byte, list protowire.Number, name string, value int64) []byte {
	var digits [20]byte
	return appendText(b, list, name, strconv.AppendInt(digits[:0], value, 10))
}

// appendText appends a header with an ASCII value to list, which is [requestHeaders] or [responseHeaders].
func appendText[T string | []byte](b []byte, list protowire.Number, name string, value T) []byte {
	b, start := open(b, list)
	b = appendString(b, headerKey, name)
	b, inner := open(b, headerValue)
	b = shut(append(b, value...), inner)
	return shut(b, start)
}

// appendRuleName appends the name of the decisive rule to the headers of the request and of the response. That is the rule that rejects;
// otherwise the one that the other headers describe; otherwise the first one admitted by a control.
func appendRuleName(b []byte, header string, v *limiter.Verdict) []byte {
	i := v.Header
	if i < 0 {
		i = slices.IndexFunc(v.Statuses, func(s limiter.Status) bool { return s.Control != nil })
	}
	if v.Over {
		i = v.Rejection()
	}
	b = appendName(b, requestHeaders, header, v, i)
	return appendName(b, responseHeaders, header, v, i)
}

// appendName appends a header with the name of the rule of the i-th status, if it has one.
func appendName(b []byte, list protowire.Number, header string, v *limiter.Verdict, i int) []byte {
	if i < 0 || i >= len(v.Statuses) {
		return b
	}
	name := headerText(v.Statuses[i].RuleName())
	if name == "" {
		return b
	}
	return appendText(b, list, header, name)
}

// headerText encodes s as the value of a header. It percent-encodes percent signs, leading and trailing blanks, and all bytes that are
// not visible ASCII.
func headerText(s string) string {
	plain := func(i int) bool {
		return s[i] > ' ' && s[i] <= '~' && s[i] != '%' || s[i] == ' ' && i > 0 && i < len(s)-1
	}
	for i := range len(s) {
		if plain(i) {
			continue
		}
		b := []byte(s[:i])
		for ; i < len(s); i++ {
			if plain(i) {
				b = append(b, s[i])
			} else {
				b = fmt.Appendf(b, "%%%02X", s[i])
			}
		}
		return string(b)
	}
	return s
}

// longestWait returns the longest wait for a turn in the queues that admitted the request; found is false if there are none.
func longestWait(v *limiter.Verdict) (wait time.Duration, found bool) {
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if st.RateLimit != nil && st.RateLimit.Limit.Algorithm.Queues() && !st.Over && st.Decision.Admitted > 0 {
			wait, found = max(wait, st.Decision.Wait), true
		}
	}
	return wait, found
}

// retrySeconds returns the number of seconds, at least 1, after which a rejected request would pass: when the last of the rejecting
// limits would admit it. Limits in quota mode reject only together. So if all rejecting limits are in quota mode, it is the time until
// the first of them would admit; if they form groups, the time until all limits of some group would. It is 0 if the request can never
// pass, or if all of the limits are hidden.
func retrySeconds(v *limiter.Verdict) int64 {
	retry := retryLimits
	if len(v.GroupBy) > 0 {
		retry = retryGroups
	}
	if n := retry(v); n < never {
		return n
	}
	return 0
}

// never exceeds the wait for any limit, in seconds.
const never = math.MaxInt64

// retryOf returns the number of seconds until an exceeded limit would admit: 0 if the limit is hidden, or never, even for a hidden limit.
func retryOf(st *limiter.Status) int64 {
	switch {
	case st.Never():
		return never
	case st.Hidden():
		return 0
	}
	return max(1, st.ResetSeconds())
}

// retryLimits returns the result of retrySeconds without groups.
func retryLimits(v *limiter.Verdict) int64 {
	var last, firstQuota int64
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if !st.Outcome.Rejects() {
			continue
		}
		if n := retryOf(st); !st.Quota {
			last = max(last, n)
		} else if firstQuota == 0 || n > 0 && n < firstQuota {
			firstQuota = n
		}
	}
	return cmp.Or(last, firstQuota)
}

// retryGroups returns the result of retrySeconds with groups. A group that is not over admits the request, unless another limit rejects
// it.
func retryGroups(v *limiter.Verdict) int64 {
	var all, first int64                 // limits outside of groups or in all groups; the first group to admit
	last := make([]int64, len(v.Groups)) // by group, the limit that admits last
	over := make([]bool, len(v.Groups))  // by group, whether one of its own limits is over
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if !st.Outcome.Rejects() {
			continue
		}
		if n := retryOf(st); !st.Quota || st.Group == limiter.AnyGroup {
			all = max(all, n)
		} else {
			last[st.Group], over[st.Group] = max(last[st.Group], n), true
		}
	}
	if slices.Contains(over, false) {
		return all
	}
	for _, n := range last {
		if first == 0 || n > 0 && n < first {
			first = n
		}
	}
	return max(all, first)
}
