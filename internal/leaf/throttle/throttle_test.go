package throttle

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAllow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := Every(10 * time.Second)
		for i, c := range []struct {
			wait    time.Duration
			subject string
			omitted int
			ok      bool
		}{
			{0, "a", 0, true},
			{0, "a", 0, false},
			{0, "b", 0, true},
			{10*time.Second - 1, "a", 0, false},
			{1, "a", 2, true},
			{0, "a", 0, false},
			{time.Hour, "b", 0, true},
			{0, "a", 1, true},
		} {
			time.Sleep(c.wait)
			if omitted, ok := l.Allow(c.subject); omitted != c.omitted || ok != c.ok {
				t.Errorf("line %d, about %s: got %d, %t, want %d, %t", i, c.subject, omitted, ok, c.omitted, c.ok)
			}
		}
	})
}

func TestThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		l, log := Every(time.Minute), slog.New(slog.NewTextHandler(&b, nil))
		for range 3 {
			l.Through(log, "a").Warn("x", "k", 1)
		}
		time.Sleep(time.Minute)
		l.Through(log, "a").Warn("x", "k", 2)
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 2 || !strings.HasSuffix(lines[0], "msg=x omitted=0 k=1") || !strings.HasSuffix(lines[1], "msg=x omitted=2 k=2") {
			t.Errorf("logged:\n%s", b.String())
		}
	})
}

func TestSubjectsAreBounded(t *testing.T) {
	t.Parallel()
	l := Every(time.Hour)
	for i := range 10 * maxSubjects {
		if _, ok := l.Allow(fmt.Sprint(i)); !ok {
			t.Fatalf("subject %d is not logged", i)
		}
	}
	if n := len(l.last); n > maxSubjects {
		t.Errorf("%d subjects are remembered, want at most %d", n, maxSubjects)
	}
}
