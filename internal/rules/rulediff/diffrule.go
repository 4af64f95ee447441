package rulediff

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// same reports whether r and was are the same rule, regardless of where they stand.
func same(r, was *descriptors.Rule) bool {
	sameItem := func(a, b *descriptors.RateLimit) bool {
		return a.Limit.Equal(b.Limit) && a.Number() == b.Number() && a.Unit == b.Unit &&
			a.Multiplier == b.Multiplier && a.Name == b.Name && slices.Equal(a.Replaces, b.Replaces)
	}
	sameReserve := r.Reserve == was.Reserve || r.Reserve != nil && was.Reserve != nil && *r.Reserve == *was.Reserve
	sameRLQS := r.RLQS == was.RLQS || r.RLQS != nil && was.RLQS != nil && *r.RLQS == *was.RLQS
	samePenalty := r.Penalty == was.Penalty || r.Penalty != nil && was.Penalty != nil && *r.Penalty == *was.Penalty
	return slices.EqualFunc(items(r), items(was), sameItem) && samePenalty && sameReserve && sameRLQS && r.Unlimited == was.Unlimited &&
		r.Shadow == was.Shadow && r.Quota == was.Quota && r.Holder == was.Holder && r.OnFailure == was.OnFailure &&
		r.Lease == was.Lease && r.HeadersOff == was.HeadersOff && r.PlanOf == was.PlanOf && reflect.DeepEqual(r.Metadata, was.Metadata)
}

// items returns the limits of a rule.
func items(r *descriptors.Rule) (all []*descriptors.RateLimit) {
	for _, item := range r.RateLimits.All() {
		all = append(all, item)
	}
	return all
}

// changes describes what changed from was to r, as briefly as possible.
func changes(r, was *descriptors.Rule) (out []string) {
	if same(r, was) {
		return nil
	}
	if limit := limitChange(r, was); limit != "" {
		out = append(out, limit)
	}
	out = append(out, keyChanges(r.Keys(), was.Keys())...)
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
	if losesRLQS(r, was) {
		out = append(out, unassigned)
	}
	return out
}

// limitChange returns "3→5 per minute" if only the number changed, and both limits in full if more did.
func limitChange(r, was *descriptors.Rule) string {
	now, before := r.LimitText(), was.LimitText()
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
func keyChanges(now, before []descriptors.KeyValue) (out []string) {
	value := func(list []descriptors.KeyValue, key string) (string, bool) {
		i := slices.IndexFunc(list, func(kv descriptors.KeyValue) bool { return kv.Key == key })
		if i < 0 {
			return "", false
		}
		return list[i].Value, true
	}
	for _, kv := range now {
		switch was, there := value(before, kv.Key); {
		case !there:
			out = append(out, fmt.Sprintf("now with %s %s", kv.Key, kv.Value))
		case was != kv.Value:
			out = append(out, fmt.Sprintf("%s %s→%s", kv.Key, was, kv.Value))
		}
	}
	for _, kv := range before {
		if _, there := value(now, kv.Key); !there {
			out = append(out, fmt.Sprintf("without %s %s", kv.Key, kv.Value))
		}
	}
	return out
}

// whole returns the rule in words, with all plans of its descriptor.
func whole(r *descriptors.Rule) string {
	if r.Plan == "" {
		return r.String()
	}
	words := make([]string, len(r.Plans()))
	for i, p := range r.Plans() {
		words[i] = p.Plan + " " + p.String()
	}
	return "plans: " + strings.Join(words, "; ")
}

// wholeChanges describes what changed from was to r, in any plan.
func wholeChanges(r, was *descriptors.Rule) (out []string) {
	switch {
	case r.Plan == "" && was.Plan == "":
		return changes(r, was)
	case r.Plan == "" || was.Plan == "":
		return []string{whole(was) + " → " + whole(r)}
	}
	for _, p := range r.Plans() {
		old := was.OfPlan(p.Plan)
		if old == nil {
			out = append(out, "plan "+p.Plan+" added, "+p.String())
			continue
		}
		for _, c := range changes(p, old) {
			out = append(out, "plan "+p.Plan+": "+c)
		}
	}
	for _, p := range was.Plans() {
		if r.OfPlan(p.Plan) == nil {
			out = append(out, "plan "+p.Plan+" removed ("+p.String()+")")
		}
	}
	return out
}
