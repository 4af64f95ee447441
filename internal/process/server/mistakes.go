package server

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
	mistakesEvery = time.Minute // between two lines about a mistake
	mistakesMost  = 20          // lines at one look
)

// logMistakes logs the rules whose calls show a probable mistake, and what to configure. Each call of read passes all of them.
func logMistakes(log *slog.Logger, read func(func(r *descriptors.Rule, m limiter.Mistake, calls uint64))) task.Func {
	type mistake struct {
		rule string
		kind limiter.Mistake
	}
	type told struct {
		at    time.Time
		calls uint64
	}
	before := map[mistake]told{}
	return every("mistakes", mistakesLook, func(ctx context.Context) {
		now, lines := time.Now(), 0
		read(func(r *descriptors.Rule, m limiter.Mistake, calls uint64) {
			one := mistake{r.Path, m}
			last := before[one]
			if calls == last.calls || now.Sub(last.at) < mistakesEvery || lines == mistakesMost {
				return
			}
			lines++
			before[one] = told{now, calls}
			log.WarnContext(ctx, "a rule has a probable mistake", "mistake", m.Advice(r), "rule", r.Path, "place", r.Origin(), "calls", calls-last.calls)
		})
	})
}
