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
	mistakesEvery = time.Minute // between two lines about a mistake
	mistakesMost  = 20          // lines at one look
)

// LogMistakes logs the rules whose calls show a probable mistake, and what to configure. Each call of read passes all of them.
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
			if calls == last.calls || now.Sub(last.at) < mistakesEvery || lines == mistakesMost {
				return
			}
			lines++
			before[one] = told{now, calls}
			facts := []any{"rule", r.Path, "place", r.Origin(), "calls", calls - last.calls}
			switch m {
			case limiter.Unnamed:
				log.WarnContext(ctx, "requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed: "+
					"send the ID with the cost, or use reserve with by", facts...)
			case limiter.DroppedCharge:
				log.WarnContext(ctx, "charges that exceed the remaining hits are dropped, so requests cost nothing: "+
					"if requests are charged after they have run, set late_charge: true", facts...)
			case limiter.SingleUse:
				log.WarnContext(ctx, "no limit applies, because nearly every request has a counter of its own: "+
					"name the entry that differs in each request with reserve and by, or leave it out", facts...)
			}
		})
	})
}
