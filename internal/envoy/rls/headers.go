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

// appendNumbers appends headers with these names to one of the two lists, unless no limit is reported: the limit, what remains, and
// when it resets.
func appendNumbers(b []byte, list protowire.Number, v *limiter.Verdict, names [3]string) []byte {
	if v.Header < 0 || v.Header >= len(v.Statuses) {
		return b
	}
	st := &v.Statuses[v.Header]
	b = appendHeader(b, list, names[0], int64(st.RateLimit.RequestsPerUnit))
	b = appendHeader(b, list, names[1], int64(remaining(st)))
	return appendHeader(b, list, names[2], st.ResetSeconds())
}

func appendHeader(b []byte, list protowire.Number, name string, value int64) []byte {
	var digits [20]byte
	return appendText(b, list, name, strconv.AppendInt(digits[:0], value, 10))
}

// appendText appends a header, whose value is ASCII, to one of the two lists, [requestHeaders] or [responseHeaders].
func appendText[T string | []byte](b []byte, list protowire.Number, name string, value T) []byte {
	b, start := open(b, list)
	b = appendString(b, headerKey, name)
	b, inner := open(b, headerValue)
	b = shut(append(b, value...), inner)
	return shut(b, start)
}

// appendRuleName tells the upstream and the caller which rule led to v: the one that rejects, or else the one that the
// other headers describe, or else the first that a control has let pass.
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

// appendName appends a header with the name of the rule of the i-th status, if there is one.
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

// headerText returns s as the value of a header: percent signs, blanks at either end and everything that is not visible
// ASCII are percent-encoded.
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

// longestWait returns how long the request has to wait for its turn in every queue that admitted it; found is
// false if none did.
func longestWait(v *limiter.Verdict) (wait time.Duration, found bool) {
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if st.RateLimit != nil && st.RateLimit.Limit.Algorithm.Queues() && !st.Over && st.Decision.Admitted > 0 {
			wait, found = max(wait, st.Decision.Wait), true
		}
	}
	return wait, found
}

// retrySeconds returns after how many seconds, at least 1, a rejected request would pass: when the last of the limits that rejected
// it would admit it. Limits in quota mode reject only together. So if only such limits rejected, it is when the first of them would
// admit; where they form groups, when all of the first group would. It is 0 if the request can never pass, or all of the limits are
// hidden from callers.
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

// never is more seconds than any limit waits for.
const never = math.MaxInt64

// retryOf returns after how many seconds a limit that is over would admit: 0 if that is hidden from callers, or never, which is not.
func retryOf(st *limiter.Status) int64 {
	switch {
	case st.Never():
		return never
	case st.Hidden():
		return 0
	}
	return max(1, st.ResetSeconds())
}

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

// retryGroups is for limits in quota mode that form groups. A group that is not over admits the request, unless something
// else rejects it.
func retryGroups(v *limiter.Verdict) int64 {
	var all, first int64                 // of what belongs to all groups, or to none; and of the first group
	last := make([]int64, len(v.Groups)) // of each group
	over := make([]bool, len(v.Groups))  // by a limit of its own
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
