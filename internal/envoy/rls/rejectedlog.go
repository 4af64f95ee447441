package rls

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// Which rejections of one rule are logged: the first ones of each second, and then one in many.
const (
	sampleFirst = 10
	sampleEvery = 1000
)

// sampleSlots is about how many rules are sampled separately: if there are more, some share their lines.
const sampleSlots = 1024

// longestDescriptor is how much of a descriptor is logged, in bytes.
const longestDescriptor = 512

// rejectedLog logs a sample of rejected requests. It is safe for concurrent use, and takes no lock.
type rejectedLog struct {
	log    *slog.Logger
	values bool // log the keys and values of the descriptor
	now    func() time.Time
	seed   maphash.Seed
	slots  [sampleSlots]sampleSlot
}

// sampleSlot counts the rejections of the rules whose names hash to it.
type sampleSlot struct {
	second   atomic.Int64  // the second in which rejections are counted
	rejected atomic.Uint64 // in it
	omitted  atomic.Uint64 // since the last line
}

// LogRejected returns a function for [Config].Rejected that logs a sample of rejections, with values with the keys and values of their
// descriptors.
func LogRejected(log *slog.Logger, values bool) func(*limiter.Request, *limiter.Verdict) {
	l := &rejectedLog{log: log, values: values, now: time.Now, seed: maphash.MakeSeed()}
	return l.rejected
}

func (l *rejectedLog) rejected(r *limiter.Request, v *limiter.Verdict) {
	i := v.Rejection()
	if i < 0 || i >= len(r.Descriptors) || !l.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	s := &v.Statuses[i]
	rule := s.RuleName()
	if rule == "" {
		rule = "__override__" // as in metrics: a limit that the request brought along, where no rule matched
	}
	omitted, ok := l.slots[maphash.String(l.seed, rule)%sampleSlots].sample(l.now())
	if !ok {
		return
	}
	attrs := []slog.Attr{
		slog.String("domain", string(r.Domain)),
		slog.String("rule", rule),
	}
	if !s.Never() {
		attrs = append(attrs, slog.Int64("retry_after_seconds", s.ResetSeconds()))
	}
	attrs = append(attrs, slog.Uint64("omitted", omitted))
	if s.RateLimit != nil {
		attrs = append(attrs, slog.String("limit", s.RateLimit.String()))
	}
	if l.values {
		attrs = append(attrs, slog.String("descriptor", r.Descriptors[i].Text(longestDescriptor)))
	}
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "a request was rejected", attrs...)
}

// sample reports whether a rejection at now is to be logged, and how many have been omitted since the last one that was.
func (s *sampleSlot) sample(now time.Time) (omitted uint64, ok bool) {
	if second := now.Unix(); s.second.Load() != second && s.second.Swap(second) != second {
		s.rejected.Store(0)
	}
	if n := s.rejected.Add(1); n <= sampleFirst || n%sampleEvery == 0 {
		return s.omitted.Swap(0), true
	}
	s.omitted.Add(1)
	return 0, false
}
