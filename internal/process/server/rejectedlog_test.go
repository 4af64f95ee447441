package server

import (
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// rejection is a request of one descriptor that the rule of this path rejects.
func rejection(path string, e ...descriptors.Entry) (*limiter.Request, *limiter.Verdict) {
	it := &descriptors.RateLimit{
		RequestsPerUnit: 3, Unit: descriptors.Minute, Multiplier: 1,
		Limit: engine.Limit{Algorithm: engine.FixedWindow, Hits: 3, Window: 60e6, CountRefused: true},
	}
	return &limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{{Entries: e}}}, &limiter.Verdict{Over: true, Statuses: []limiter.Status{{
		Over: true, Outcome: limiter.Rejected, RateLimit: it, Rule: &descriptors.Rule{Path: path},
		Decision: engine.Decision{RetryAfter: 41500 * time.Millisecond},
	}}}
}

// newRejectedLog returns a log with what it says, one line at a time, and the time that its clock shows.
func newRejectedLog(values bool) (l *rejectedLog, said *strings.Builder, now *time.Time) {
	var s settings.Settings
	s.Log.Level, s.Log.Format = settings.Level(slog.LevelInfo), "json"
	said, now = new(strings.Builder), new(time.Unix(1_800_000_000, 0))
	l = &rejectedLog{log: NewLogger(said, s), values: values, now: func() time.Time { return *now }, seed: maphash.MakeSeed()}
	return l, said, now
}

func TestRejectionsAreSampled(t *testing.T) {
	t.Parallel()
	l, b, now := newRejectedLog(false)
	r, v := rejection("shop.user", descriptors.Entry{Key: []byte("user"), Value: []byte("planted")})
	for range 2500 {
		l.rejected(r, v)
	}
	*now = now.Add(time.Second)
	l.rejected(r, v)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != sampleFirst+2+1 {
		t.Fatalf("%d lines, want the first %d of the second, the 1000th, the 2000th, and the first of the next second:\n%s",
			len(lines), sampleFirst, b.String())
	}
	for i, omitted := range map[int]int{0: 0, sampleFirst - 1: 0, sampleFirst: 1000 - sampleFirst - 1, sampleFirst + 1: 999, sampleFirst + 2: 500} {
		if !strings.Contains(lines[i], fmt.Sprintf(`"omitted":%d,`, omitted)) {
			t.Errorf("line %d: %s, want %d omitted", i, lines[i], omitted)
		}
	}
	for _, want := range []string{
		`"level":"info","@message":"a request was rejected"`, `"domain":"shop"`, `"rule":"shop.user"`, `"retry_after_seconds":42`, `"limit":"3 per minute"`,
	} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("%s lacks %s", lines[0], want)
		}
	}
	if strings.Contains(b.String(), "planted") {
		t.Errorf("the log has a value: %s", lines[0])
	}
}

func TestRejectionsOfRulesAreSampledApart(t *testing.T) {
	t.Parallel()
	l, b, _ := newRejectedLog(false)
	names := func() (first, second string) { // whose slots differ, as most do
		for i := 0; ; i++ {
			name := fmt.Sprint("shop.r", i)
			if maphash.String(l.seed, "shop.user")%sampleSlots != maphash.String(l.seed, name)%sampleSlots {
				return "shop.user", name
			}
		}
	}
	first, second := names()
	for range 100 {
		l.rejected(rejection(first))
	}
	l.rejected(rejection(second))
	if got := strings.Count(b.String(), `"rule":"`+second+`"`); got != 1 {
		t.Errorf("%d lines of the second rule, want 1", got)
	}
}

func TestRejectedValues(t *testing.T) {
	t.Parallel()
	l, b, _ := newRejectedLog(true)
	l.rejected(rejection("shop.user", descriptors.Entry{Key: []byte("user"), Value: []byte("ann\n\xff\"")},
		descriptors.Entry{Key: []byte("k"), Value: []byte(strings.Repeat("x", 10_000))}))
	got := b.String()
	if !strings.Contains(got, `"descriptor":"user=ann\n`+"\uFFFD"+`\",k=xxx`) || len(got) > longestLogged+300 || strings.Count(got, "\n") != 1 {
		t.Errorf("logged %q", got)
	}
}

func TestRejectionsFromMany(t *testing.T) {
	t.Parallel()
	l, b, _ := newRejectedLog(false)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r, v := rejection("shop.user")
			for range 1000 {
				l.rejected(r, v)
			}
		})
	}
	all.Wait()
	if got, want := strings.Count(b.String(), "\n"), sampleFirst+8; got < sampleFirst || got > want+8*sampleFirst {
		t.Errorf("%d lines of 8000 rejections", got)
	}
}

func TestRejectionsBelowTheLevelCostNothing(t *testing.T) {
	var s settings.Settings
	s.Log.Level, s.Log.Rejected = settings.Level(slog.LevelError), true
	tell := logRejected(&s, NewLogger(io.Discard, s))
	r, v := rejection("shop.user")
	if n := testing.AllocsPerRun(100, func() { tell(r, v) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	s.Log.Rejected = false
	if logRejected(&s, NewLogger(io.Discard, s)) != nil {
		t.Error("LOG_REJECTED=false is told of rejections")
	}
}

// A rejection that is not logged costs no memory.
func TestRejectionsLeftOutCostNothing(t *testing.T) {
	l, _, _ := newRejectedLog(false)
	r, v := rejection("shop.user")
	for range sampleFirst {
		l.rejected(r, v)
	}
	if n := testing.AllocsPerRun(sampleEvery/2, func() { l.rejected(r, v) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestLevelNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"trace": "trace", "debug": "debug", "info": "info", "warn": "warning", "WARNING": "warning", "error": "error", "Fatal": "error", "panic": "error",
	} {
		for _, format := range []string{"text", "json"} {
			s := parsed(t, "BACKEND_TYPE=memory", "LOG_LEVEL="+name, "LOG_FORMAT="+format)
			var b strings.Builder
			log := NewLogger(&b, s)
			log.Log(t.Context(), slog.Level(s.Log.Level)-1, "below")
			log.Log(t.Context(), slog.Level(s.Log.Level), "at it")
			begin, end := "time=", " level="+want+` msg="at it"`
			if format == "json" {
				begin, end = `{"@timestamp":"`, `","level":"`+want+`","@message":"at it"}`
			}
			if line := strings.TrimSpace(b.String()); !strings.HasPrefix(line, begin) || !strings.HasSuffix(line, end) || strings.Contains(line, "below") {
				t.Errorf("LOG_LEVEL=%s LOG_FORMAT=%s: %s", name, format, line)
			}
		}
	}
}

// TestLateChargesAreNotRejected: a late charge is in no line, and where something else rejects the request the line names that.
func TestLateChargesAreNotRejected(t *testing.T) {
	t.Parallel()
	l, b, _ := newRejectedLog(false)
	r, v := rejection("shop.budget")
	v.Statuses[0].Outcome = limiter.ChargedLate
	if l.rejected(r, v); b.Len() > 0 {
		t.Errorf("a late charge is logged: %s", b.String())
	}
	r2, v2 := rejection("shop.user")
	r.Descriptors, v.Statuses = append(r.Descriptors, r2.Descriptors...), append(v.Statuses, v2.Statuses...)
	if l.rejected(r, v); !strings.Contains(b.String(), `"rule":"shop.user"`) {
		t.Errorf("want a line about shop.user: %s", b.String())
	}
}
