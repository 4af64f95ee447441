package rls

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// appendHeaders appends response_headers_to_add.
func (s *Service) appendHeaders(b []byte, v *limiter.Verdict) []byte {
	h := &s.config.Headers
	if h.Enabled && h.Draft {
		b = appendDraft(b, v)
	} else if h.Enabled && v.Header >= 0 && v.Header < len(v.Statuses) {
		st := &v.Statuses[v.Header]
		b = appendHeader(b, h.Limit, int64(st.RateLimit.RequestsPerUnit))
		b = appendHeader(b, h.Remaining, int64(remaining(st)))
		b = appendHeader(b, h.Reset, st.ResetSeconds())
	}
	if h.Enabled && !v.Over {
		if wait, ok := longestWait(v); ok {
			b = appendHeader(b, WaitHeader, ceil(wait, time.Millisecond))
		}
	}
	if h.RetryAfter != "" && v.Over {
		if n := retrySeconds(v); n > 0 {
			b = appendHeader(b, h.RetryAfter, n)
		}
	}
	return b
}

func appendHeader(b []byte, name string, value int64) []byte {
	var digits [20]byte
	return appendText(b, responseHeaders, name, strconv.AppendInt(digits[:0], value, 10))
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
	if i < 0 || i >= len(v.Statuses) {
		return b
	}
	name := headerText(v.Statuses[i].RuleName())
	if name == "" {
		return b
	}
	b = appendText(b, requestHeaders, header, name)
	return appendText(b, responseHeaders, header, name)
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
// admit; where they form groups, when all of the first group would. It is 0 if all of the limits are hidden from callers.
func retrySeconds(v *limiter.Verdict) int64 {
	if len(v.GroupBy) > 0 {
		return retryGroups(v)
	}
	var last, firstQuota int64
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if !st.Outcome.Rejects() || st.Hidden() {
			continue
		}
		n := max(1, st.ResetSeconds())
		if !st.Quota {
			last = max(last, n)
		} else if firstQuota == 0 || n < firstQuota {
			firstQuota = n
		}
	}
	return cmp.Or(last, firstQuota)
}

// retryGroups is retrySeconds where limits in quota mode form groups. A group that is not over admits the request, unless something
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
		n := max(1, st.ResetSeconds())
		if st.Hidden() {
			n = 0
		}
		if !st.Quota || st.Group == limiter.AnyGroup {
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
