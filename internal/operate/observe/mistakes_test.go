package observe

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestMistakesAreLogged: a line a minute for each rule and mistake while it goes on, and none once a reservation is settled.
func TestMistakesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		set, _, err := descriptors.Load([]descriptors.Source{{Name: "llm.yaml", Data: []byte(`domain: llm
descriptors:
  - {key: id, rate_limit: {unit: hour, requests_per_unit: 1000000, reserve: {estimate: 400}}}
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: token_bucket}}
  - {key: stream, rate_limit: {unit: hour, requests_per_unit: 1000}}
`)}}, descriptors.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ids := new(limiter.Sealer)
		ids.SetOwnKey([]byte("a key that only this process has"))
		l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Reservations: ids})
		l.SetRules(set)
		ask := func(hits uint64, kv ...string) *limiter.Verdict {
			d := limiter.Descriptor{Hits: hits, HasHits: true}
			for i := 0; i < len(kv); i += 2 {
				d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(kv[i]), Value: []byte(kv[i+1])})
			}
			v, err := l.Decide(t.Context(), &limiter.Request{Domain: []byte("llm"), Descriptors: []limiter.Descriptor{d}}, new(limiter.Scratch))
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		var log testkit.Buffer
		begun := time.Now()
		o := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey:
				return slog.Duration("at", time.Since(begun))
			case "mistake":
				text, _, _ := strings.Cut(a.Value.String(), ":")
				return slog.String(a.Key, text)
			}
			return a
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- LogMistakes(slog.New(slog.NewTextHandler(&log, o)), l.Mistakes).Run(ctx) }()
		time.Sleep(time.Second / 2) // so that nothing happens at a look
		id := ask(0, "id", "ann").Reservation
		for range 1000 {
			ask(0, "bucket", "ann")
		}
		for i := range 150 {
			ask(300, "id", "ann")
			ask(600, "bucket", "ann")
			for j := range 10 {
				ask(0, "stream", fmt.Sprint(i, "-", j))
			}
			time.Sleep(time.Second)
		}
		ask(100, "id", "ann", "reservation", id)
		for i := range 500 { // then they have gone on for ten minutes
			ask(0, "stream", fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		l.SetRules(set) // as a reload does
		time.Sleep(10 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := `at=5s level=WARN msg="a rule has a probable mistake" mistake="requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed" rule=llm.id place=llm.yaml:3 calls=5
at=5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=llm.yaml:4 calls=4
at=1m5s level=WARN msg="a rule has a probable mistake" mistake="requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed" rule=llm.id place=llm.yaml:3 calls=60
at=1m5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=llm.yaml:4 calls=60
at=2m5s level=WARN msg="a rule has a probable mistake" mistake="requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed" rule=llm.id place=llm.yaml:3 calls=60
at=2m5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=llm.yaml:4 calls=60
at=3m5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=llm.yaml:4 calls=25
at=10m5s level=WARN msg="a rule has a probable mistake" mistake="no limit applies, because nearly every request has a counter of its own" rule=llm.stream place=llm.yaml:5 calls=5
at=11m5s level=WARN msg="a rule has a probable mistake" mistake="no limit applies, because nearly every request has a counter of its own" rule=llm.stream place=llm.yaml:5 calls=45
`
		if d := cmp.Diff(want, log.String()); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}
