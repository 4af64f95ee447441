package descriptors

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// same reports whether r and was are the same rule, regardless of where they stand.
func (r *Rule) same(was *Rule) bool {
	sameItem := func(a, b RateLimit) bool {
		return a.Limit.Equal(b.Limit) && a.RequestsPerUnit == b.RequestsPerUnit && a.Unit == b.Unit &&
			a.Multiplier == b.Multiplier && a.Name == b.Name && slices.Equal(a.Replaces, b.Replaces)
	}
	sameReserve := r.Reserve == was.Reserve || r.Reserve != nil && was.Reserve != nil && *r.Reserve == *was.Reserve
	samePenalty := r.Penalty == was.Penalty || r.Penalty != nil && was.Penalty != nil && *r.Penalty == *was.Penalty
	return slices.EqualFunc(r.RateLimits.list, was.RateLimits.list, sameItem) && samePenalty && sameReserve && r.Unlimited == was.Unlimited &&
		r.Shadow == was.Shadow && r.Quota == was.Quota && r.Holder == was.Holder && r.OnFailure == was.OnFailure &&
		r.Lease == was.Lease && r.HeadersOff == was.HeadersOff && r.PlanOf == was.PlanOf && reflect.DeepEqual(r.Metadata, was.Metadata)
}

// changes describes what changed from was to r, as briefly as possible.
func (r *Rule) changes(was *Rule) (out []string) {
	if r.same(was) {
		return nil
	}
	if limit := r.limitChange(was); limit != "" {
		out = append(out, limit)
	}
	out = append(out, keyChanges(r.keys(), was.keys())...)
	for i := range min(r.RateLimits.Len(), was.RateLimits.Len()) {
		now, before := r.RateLimits.At(i), was.RateLimits.At(i)
		if now.Name != before.Name {
			out = append(out, fmt.Sprintf("name %q→%q", before.Name, now.Name))
		}
		if !slices.Equal(now.Replaces, before.Replaces) {
			out = append(out, fmt.Sprintf("replaces %q→%q", before.Replaces, now.Replaces))
		}
	}
	if !reflect.DeepEqual(r.Metadata, was.Metadata) {
		out = append(out, "metadata changed")
	}
	return out
}

// limitChange returns "3→5 per minute" if only the number changed, and both limits in full if more did.
func (r *Rule) limitChange(was *Rule) string {
	now, before := r.limitText(RateLimit.String), was.limitText(RateLimit.String)
	if now == before {
		return ""
	}
	if r.RateLimits.Len() == 1 && was.RateLimits.Len() == 1 && !r.Unlimited && !was.Unlimited {
		number, rest, _ := strings.Cut(now, " ")
		numberBefore, restBefore, _ := strings.Cut(before, " ")
		if rest == restBefore {
			return numberBefore + "→" + number + " " + rest
		}
	}
	return before + " → " + now
}

// keyChanges compares two lists of keys. Each key occurs at most once in a list.
func keyChanges(now, before []keyValue) (out []string) {
	value := func(list []keyValue, key string) (string, bool) {
		i := slices.IndexFunc(list, func(kv keyValue) bool { return kv.key == key })
		if i < 0 {
			return "", false
		}
		return list[i].value, true
	}
	for _, kv := range now {
		switch was, there := value(before, kv.key); {
		case !there:
			out = append(out, fmt.Sprintf("now with %s %s", kv.key, kv.value))
		case was != kv.value:
			out = append(out, fmt.Sprintf("%s %s→%s", kv.key, was, kv.value))
		}
	}
	for _, kv := range before {
		if _, there := value(now, kv.key); !there {
			out = append(out, fmt.Sprintf("without %s %s", kv.key, kv.value))
		}
	}
	return out
}

// whole returns the rule in words, with all plans of its descriptor.
func (r *Rule) whole() string {
	if r.Plan == "" {
		return r.String()
	}
	words := make([]string, len(r.plans))
	for i, p := range r.plans {
		words[i] = p.Plan + " " + p.String()
	}
	return "plans: " + strings.Join(words, "; ")
}

// wholeChanges describes what changed from was to r, in any plan.
func (r *Rule) wholeChanges(was *Rule) (out []string) {
	switch {
	case r.Plan == "" && was.Plan == "":
		return r.changes(was)
	case r.Plan == "" || was.Plan == "":
		return []string{was.whole() + " → " + r.whole()}
	}
	for _, p := range r.plans {
		old := was.plan(p.Plan)
		if old == nil {
			out = append(out, "plan "+p.Plan+" added, "+p.String())
			continue
		}
		for _, c := range p.changes(old) {
			out = append(out, "plan "+p.Plan+": "+c)
		}
	}
	for _, p := range was.plans {
		if r.plan(p.Plan) == nil {
			out = append(out, "plan "+p.Plan+" removed ("+p.String()+")")
		}
	}
	return out
}

// plan returns the rule of a plan of the same descriptor, or nil.
func (r *Rule) plan(name string) *Rule {
	for _, p := range r.plans {
		if p.Plan == name {
			return p
		}
	}
	return nil
}
