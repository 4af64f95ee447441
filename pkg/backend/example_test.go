package backend_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// A program that makes its own decisions: it loads rules, matches a request, and counts in memory.
func Example() {
	rules := `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_window}
`
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "shop.yaml", Data: []byte(rules)}}, descriptors.Options{})
	if err != nil {
		log.Fatal(err)
	}
	counters := memory.New(memory.Config{})
	defer counters.Close()

	domain := set.Domain([]byte("shop"))
	entries := []descriptors.Entry{{Key: []byte("user"), Value: []byte("alice")}}
	match := domain.Match(entries)
	for range 3 {
		ops := []backend.Op{{
			Key:    descriptors.Hash(match.AppendName(nil, domain, entries, false)),
			Limits: match.Rule.RateLimits.Limits(),
			Take:   engine.Take{Cost: 1, Count: 1},
		}}
		counters.Apply(context.Background(), ops)
		if ops[0].Err != nil {
			log.Fatal(ops[0].Err)
		}
		fmt.Println(ops[0].Decision.Admitted == 1)
	}
	// Output:
	// true
	// true
	// false
}
