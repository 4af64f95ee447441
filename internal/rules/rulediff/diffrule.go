package rulediff

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// changes describes the changes from was to r briefly.
func changes(r, was *descriptors.Rule) (out []string) {
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

// limitChange returns "3→5 per minute" if only the number changed, and otherwise both limits in full.
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
	find := func(list []descriptors.KeyValue, key string) int {
		return slices.IndexFunc(list, func(kv descriptors.KeyValue) bool { return kv.Key == key })
	}
	for _, kv := range now {
		switch i := find(before, kv.Key); {
		case i < 0:
			out = append(out, fmt.Sprintf("now with %s %s", kv.Key, kv.Value))
		case before[i] != kv:
			out = append(out, fmt.Sprintf("%s %s→%s", kv.Key, before[i].Value, kv.Value))
		}
	}
	for _, kv := range before {
		if find(now, kv.Key) < 0 {
			out = append(out, fmt.Sprintf("without %s %s", kv.Key, kv.Value))
		}
	}
	return out
}

// describe describes the rule, with all plans of its descriptor.
func describe(r *descriptors.Rule) string {
	if r.Plan == "" {
		return r.String()
	}
	words := make([]string, len(r.Plans()))
	for i, p := range r.Plans() {
		words[i] = p.Plan + " " + p.String()
	}
	return "plans: " + strings.Join(words, "; ")
}

// wholeChanges describes the changes from was to r in any plan.
func wholeChanges(r, was *descriptors.Rule) (out []string) {
	switch {
	case r.Plan == "" && was.Plan == "":
		return changes(r, was)
	case r.Plan == "" || was.Plan == "":
		return []string{describe(was) + " → " + describe(r)}
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
