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
	rejectionsEvery   = time.Minute // interval between reports
	maxRejectionLines = 20          // rules per report with their own line
)

// rejecting is a rule that has rejected requests.
type rejecting struct {
	rule     *descriptors.Rule
	requests uint64 // since the last report
}

// rejections holds the totals of the last report.
type rejections struct {
	read   func() (*descriptors.Set, func(*descriptors.Rule) limiter.Tally)
	logged map[string]uint64 // by the rule's path; rules that never rejected have no entry
}

// LogRejections logs once a minute which rules have rejected requests, so that the log explains a customer's rejections. It reads
// existing counts, so decisions cost nothing more.
func LogRejections(log *slog.Logger, read func() (*descriptors.Set, func(*descriptors.Rule) limiter.Tally)) task.Func {
	r := rejections{read: read, logged: map[string]uint64{}}
	return task.Every("rejections", rejectionsEvery, func(ctx context.Context) { r.log(ctx, log) })
}

// log reports the rules with the most rejections since the last report, and totals of the others.
func (r *rejections) log(ctx context.Context, log *slog.Logger) {
	all := r.since()
	slices.SortFunc(all, func(a, b rejecting) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), cmp.Compare(a.rule.Path, b.rule.Path))
	})
	for _, one := range all[:min(len(all), maxRejectionLines)] {
		log.InfoContext(ctx, "a rule rejected requests in the last minute",
			"rule", one.rule.Path, "place", one.rule.Origin(), "limit", one.rule.String(), "requests", one.requests)
	}
	if len(all) > maxRejectionLines {
		rest := uint64(0)
		for _, one := range all[maxRejectionLines:] {
			rest += one.requests
		}
		log.InfoContext(ctx, "more rules rejected requests in the last minute", "rules", len(all)-maxRejectionLines, "requests", rest)
	}
}

// since returns the rules with rejections since its last call. Of rules that share a counter, it returns the first.
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
