package throttle

import (
	"fmt"
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
