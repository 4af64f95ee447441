package ratelimit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/ratelimit"
)

func Example() {
	rules := `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_window}
`
	limiter, err := ratelimit.New([]byte(rules), memory.New(memory.Config{}))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		ok, err := limiter.Allow(context.Background(), "shop", "user", "ann")
		if err != nil {
			log.Print(err) // the backend failed, and ok is what on_failure decides
		}
		fmt.Println(ok)
	}
	// Output:
	// true
	// true
	// false
}
