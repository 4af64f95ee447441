package observe

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

const (
	rejectionsEvery = time.Minute // the log says which rules reject
	rejectionsMost  = 20          // rules a minute that have a line of their own
)

// rejecting is a rule that has rejected requests.
type rejecting struct {
	rule     *descriptors.Rule
	requests uint64 // since the last lines
}

// rejections remembers what each rule had rejected when the log last said so.
type rejections struct {
	read   func() (*descriptors.Set, func(*descriptors.Rule) limiter.Tally)
	logged map[string]uint64 // by the rule's path; rules that never rejected have no entry
}

// LogRejections logs once a minute which rules have rejected requests, so that the log answers which limit it was that a
// customer met. It costs a decision nothing: it reads what metrics count.
func LogRejections(log *slog.Logger, read func() (*descriptors.Set, func(*descriptors.Rule) limiter.Tally)) task.Func {
	r := rejections{read: read, logged: map[string]uint64{}}
	return task.Every("rejections", rejectionsEvery, func(ctx context.Context) { r.log(ctx, log) })
}

// log logs the rules that have rejected most since the last time, and how many others have.
func (r *rejections) log(ctx context.Context, log *slog.Logger) {
	all := r.since()
	slices.SortFunc(all, func(a, b rejecting) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), cmp.Compare(a.rule.Path, b.rule.Path))
	})
	for _, one := range all[:min(len(all), rejectionsMost)] {
		log.InfoContext(ctx, "a rule rejected requests in the last minute",
			"rule", one.rule.Path, "place", one.rule.Origin(), "limit", one.rule.String(), "requests", one.requests)
	}
	if len(all) > rejectionsMost {
		rest := uint64(0)
		for _, one := range all[rejectionsMost:] {
			rest += one.requests
		}
		log.InfoContext(ctx, "more rules rejected requests in the last minute", "rules", len(all)-rejectionsMost, "requests", rest)
	}
}

// since returns the rules that have rejected requests since it was last called. Of rules with a counter in common the first
// one counts.
func (r *rejections) since() (all []rejecting) {
	set, tally := r.read()
	if set == nil {
		return nil
	}
	logged := map[string]uint64{}
	for rule := range set.Rules() {
		n := tally(rule).Rejected
		if n == 0 {
			continue
		}
		if _, again := logged[rule.Path]; again {
			continue
		}
		logged[rule.Path] = n
		if before := r.logged[rule.Path]; n > before {
			all = append(all, rejecting{rule, n - before})
		}
	}
	r.logged = logged
	return all
}
