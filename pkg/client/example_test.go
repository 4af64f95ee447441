package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/pkg/client"
)

// The examples use a real server, at addr, with the rules of testdata/rules. Their timeout is longer than that of a service.
var config = client.Config{Timeout: 30 * time.Second}

func Example() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	alice := c.Limiter(client.Pairs("user", "alice"))
	for range 4 {
		fmt.Println(alice.Allow(context.Background()))
	}
	// Output:
	// true
	// true
	// true
	// false
}

// Requests alternate between two replicas. While neither answers, everything is admitted.
func ExampleNew() {
	c, err := client.New("ratelimitd-0.infra:8081,ratelimitd-1.infra:8081", "shop", client.Config{
		Timeout:  20 * time.Millisecond,
		FailOpen: true,
		OnError:  func(err error) { fmt.Println("not limited:", err != nil) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	fmt.Println(c.Limiter(client.Pairs("user", "alice")).Allow(context.Background()))
	// Output:
	// not limited: true
	// true
}

func ExampleLimiter_Take() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	// One request for both limits, which consumes two hits of each.
	l := c.Limiter(client.Pairs("user", "bob"), client.Pairs("path", "/search", "user", "bob"))
	r, err := l.Take(context.Background(), 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %s has %d of %d per %v left\n", r.OK, r.Rule, r.Remaining, r.Limit, r.Window)
	for _, s := range r.Statuses {
		fmt.Println(s.Rule, s.Remaining)
	}
	// Output:
	// true: shop.user has 1 of 3 per 1m0s left
	// shop.user 1
	// shop.path.user 98
}

func ExampleLimiter_Peek() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	carol := c.Limiter(client.Pairs("user", "carol"))
	for range 2 {
		r, err := carol.Peek(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.OK, r.Remaining)
	}
	// Output:
	// true 3
	// true 3
}

// The rule is a queue (leaky_bucket) with a turn every 50 ms.
func ExampleLimiter_Wait() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start, smtp := time.Now(), c.Limiter(client.Pairs("mail", "smtp.example.com"))
	for range 4 {
		if err := smtp.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(time.Since(start) > 140*time.Millisecond)
	// Output:
	// true
}

// The rule has `algorithm: concurrency` with two slots, and `holder: run`.
func ExampleLimiter_Hold() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx, reports := context.Background(), c.Limiter(client.Pairs("report", "monthly"))
	for range 2 {
		slot, err := reports.Hold(ctx, "run")
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = slot.Release() }() // during the work, watch slot.Lost
	}
	_, err = reports.Hold(ctx, "run")
	fmt.Println(errors.Is(err, client.ErrOverLimit))
	// Output:
	// true
}

func ExampleClient_Middleware() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	limited := c.Middleware(func(r *http.Request) []client.Descriptor {
		name, _, ok := r.BasicAuth()
		if !ok {
			return nil // not limited
		}
		return []client.Descriptor{client.Pairs("user", name)}
	}, client.HTTP{})
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))

	for range 4 {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.SetBasicAuth("dave", "secret")
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Remaining"), w.Header().Get("Retry-After") != "")
	}
	// Output:
	// 200 2 false
	// 200 1 false
	// 200 0 false
	// 429 0 true
}

func ExampleClient_UnaryServerInterceptor() {
	c, err := client.New(addr, "shop", config)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	key := func(ctx context.Context, method string) []client.Descriptor {
		md, _ := metadata.FromIncomingContext(ctx)
		if len(md["user"]) == 0 || method == "/grpc.health.v1.Health/Check" {
			return nil // not limited
		}
		return []client.Descriptor{client.Pairs("user", md["user"][0])}
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(c.UnaryServerInterceptor(key)),
		grpc.StreamInterceptor(c.StreamServerInterceptor(key)),
	)
	server.Stop() // or register services, and serve
	// Output:
}
