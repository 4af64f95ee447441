package shares_test

import (
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// BenchmarkSecond simulates a second of a bucket under contention with 1,000 clients, 200 of which report. The result is the time per
// report, including divisions and answers of the store.
func BenchmarkSecond(b *testing.B) {
	const clients, rate = 1000, 10_000
	for _, mode := range []shares.Mode{shares.Fast, shares.Strict} {
		b.Run(fmt.Sprint(mode), func(b *testing.B) {
			limit := shares.Limit{Hits: rate, Window: second, Burst: 60 * rate}
			store := simStore{limit: limit, level: 60 * rate, at: 600 * second}
			bucket := shares.New(shares.Config{Limit: limit, Mode: mode}, store.at)
			names := make([]string, clients)
			for i := range names {
				names[i] = fmt.Sprint("client ", i)
			}
			now, next, actions := store.at, 0, 0
			for b.Loop() {
				for range 200 {
					bucket.Report(now, shares.Client{ID: names[next], Weight: 1}, shares.Usage{Allowed: 40, Denied: uint64(next % 30)})
					next = (next + 1) % clients
					now += second / 200
					for bucket.Next() <= now {
						if a, ok := bucket.Request(now); ok {
							bucket.Answer(now, store.answer(now, a, false))
						}
						actions += len(bucket.Actions(now))
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/report")
			b.ReportMetric(float64(actions)/float64(b.N)/200, "actions/report")
		})
	}
}
