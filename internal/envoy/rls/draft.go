package rls

import (
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Headers of draft-ietf-httpapi-ratelimit-headers-11. Each is a list of structured-field items (RFC 9651): the name of a policy, with
// parameters.
const (
	PolicyHeader  = "RateLimit-Policy" // the limits
	ServiceHeader = "RateLimit"        // the remaining hits
)

// Bounds of each header. The first item is always present.
const (
	maxPolicies    = 16
	maxPolicyBytes = 2000
	maxPolicyName  = 128
	maxInteger     = 999_999_999_999_999 // largest integer in structured fields
)

// policy is an item of both headers.
type policy struct {
	limit  *descriptors.RateLimit
	status *limiter.Status
	listed bool // the rule has several limits
}

// appendDraft appends both headers. RateLimit begins with the limit that the other format describes. RateLimit-Policy lists the limits in
// the order of the request, so that it is the same in every answer. A limit that applies to several descriptors appears once, with the
// strictest status.
func appendDraft(b []byte, v *limiter.Verdict) []byte {
	if v.Header < 0 || v.Header >= len(v.Statuses) {
		return b
	}
	var policies, left [maxPolicies]policy
	p, l := policies[:0], addLeft(left[:0], &v.Statuses[v.Header])
	for i := range v.Statuses {
		p, l = addPolicies(p, &v.Statuses[i]), addLeft(l, &v.Statuses[i])
	}
	var room [256]byte
	text := room[:0]
	for i := range p {
		text = add(text, i, func(b []byte) []byte { return p[i].appendPolicy(b) })
	}
	b = appendText(b, responseHeaders, PolicyHeader, text)
	text = text[:0]
	for i := range l {
		text = add(text, i, func(b []byte) []byte { return l[i].appendLeft(b) })
	}
	return appendText(b, responseHeaders, ServiceHeader, text)
}

// add appends the i-th item of a list if it fits.
func add(b []byte, i int, item func([]byte) []byte) []byte {
	before := len(b)
	if i > 0 {
		b = append(b, ", "...)
	}
	if b = item(b); i > 0 && len(b) > maxPolicyBytes {
		return b[:before]
	}
	return b
}

// addPolicies adds the limits of a status, without duplicates.
func addPolicies(all []policy, st *limiter.Status) []policy {
	if st.RateLimit == nil || st.Hidden() {
		return all
	}
	if st.Limits == nil || st.Limits.Len() < 2 {
		return addOne(all, policy{limit: st.RateLimit, status: st})
	}
	for _, limit := range st.Limits.All() {
		all = addOne(all, policy{limit: limit, status: st, listed: true})
	}
	return all
}

// addLeft adds the reported limit of a status. If several statuses report the same limit, it keeps the strictest.
func addLeft(all []policy, st *limiter.Status) []policy {
	if st.RateLimit == nil || st.Hidden() {
		return all
	}
	one := policy{limit: st.RateLimit, status: st, listed: st.Limits != nil && st.Limits.Len() > 1}
	if i := slices.IndexFunc(all, one.same); i >= 0 {
		if stricter(st, all[i].status) {
			all[i].status = st
		}
		return all
	}
	return addOne(all, one)
}

// addOne adds a limit unless the list is full or contains it.
func addOne(all []policy, one policy) []policy {
	if len(all) == maxPolicies || slices.ContainsFunc(all, one.same) {
		return all
	}
	return append(all, one)
}

// same reports whether p and q are the same limit, even with different counters.
func (p policy) same(q policy) bool {
	return p.limit == q.limit || p.status.Rule != nil && p.status.Rule == q.status.Rule && p.status.Override == q.status.Override &&
		p.limit.Name == q.limit.Name && p.limit.Limit.Equal(q.limit.Limit)
}

// stricter reports whether a has less remaining than b or, if equal, resets later.
func stricter(a, b *limiter.Status) bool {
	if remaining(a) != remaining(b) {
		return remaining(a) < remaining(b)
	}
	return a.ResetSeconds() > b.ResetSeconds()
}

// appendPolicy appends the item of a limit. Its parameters are the limit's number as q; the window in seconds as w, except for calendar
// windows, whose lengths vary; for slots, the unit; and the capacity of a bucket, if it differs from the number, in a parameter that the
// draft lacks.
func (p policy) appendPolicy(b []byte) []byte {
	limit := &p.limit.Limit
	b = p.appendName(b)
	b = appendInteger(b, ";q=", int64(p.limit.Number()))
	if limit.Algorithm.Holds() {
		return append(b, `;qu="concurrent-requests"`...)
	}
	if w := int64(limit.Window) / time.Second.Microseconds(); limit.Calendar == nil && w > 0 { // a block has no window
		b = appendInteger(b, ";w=", w)
	}
	if limit.Capacity() != limit.Hits {
		b = appendInteger(b, ";ratelimitd-burst=", int64(min(limit.Capacity(), maxInteger)))
	}
	return b
}

// appendLeft appends the item with the remaining hits and the seconds until there are more. For a rejection, it is the time until the
// same request would pass. A window that never ends has no such time.
func (p policy) appendLeft(b []byte) []byte {
	b = appendInteger(p.appendName(b), ";r=", int64(remaining(p.status)))
	if p.status.Endless() {
		return b
	}
	return appendInteger(b, ";t=", p.status.ResetSeconds())
}

// appendName appends the name of the limit, or the path of its rule if it has none. This is [limiter.Status.RuleName], except that a
// control that replaces the number does not change it. If the rule has several limits, those without a name have their window and
// algorithm appended.
func (p policy) appendName(b []byte) []byte {
	name := p.limit.Name
	if name == "" && p.status.Rule != nil {
		name = p.status.Rule.Path
		if p.listed {
			name += ":" + p.limit.WindowText() + ":" + p.limit.Limit.Algorithm.String()
		}
	}
	if name == "" && p.status.Control != nil {
		name = p.status.Control.String()
	}
	if name == "" {
		name = "default"
	}
	b = append(b, '"')
	name = headerText(name)
	for i := range min(len(name), maxPolicyName) {
		if name[i] == '"' || name[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

// appendInteger appends a parameter.
func appendInteger(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), min(max(n, 0), maxInteger), 10)
}
