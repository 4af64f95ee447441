package observe

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

const (
	mistakesLook  = 5 * time.Second
	mistakesEvery = time.Minute // between lines about the same mistake
	maxMistakes   = 20          // lines per check
)

// LogMistakes logs rules with a probable mistake and advice to fix it. read passes each mistake with its total number of calls.
func LogMistakes(log *slog.Logger, read func(func(r *descriptors.Rule, m limiter.Mistake, calls uint64))) task.Func {
	type mistake struct {
		rule string
		kind limiter.Mistake
	}
	type told struct {
		at    time.Time
		calls uint64
	}
	before := map[mistake]told{}
	return task.Every("mistakes", mistakesLook, func(ctx context.Context) {
		now, lines := time.Now(), 0
		read(func(r *descriptors.Rule, m limiter.Mistake, calls uint64) {
			one := mistake{r.Path, m}
			last := before[one]
			if calls == last.calls || now.Sub(last.at) < mistakesEvery || lines == maxMistakes {
				return
			}
			lines++
			before[one] = told{now, calls}
			log.WarnContext(ctx, "a rule has a probable mistake", "mistake", m.Advice(r), "rule", r.Path, "place", r.Origin(), "calls", calls-last.calls)
		})
	})
}
