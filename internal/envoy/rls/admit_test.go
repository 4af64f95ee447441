package rls

import (
	"context"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
)

// TestFallbackInTime checks that the fallback decides a call without enough time while its caller still waits.
func TestFallbackInTime(t *testing.T) {
	gate := admission.New(time.Minute)
	for gate.Enter(0) { // fills the gate; none of these calls ends
	}
	decide := decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		if !r.Late {
			t.Error("a call for which there was no room was decided")
		}
		return allow(ctx, r, v)
	})
	address := serve(t, newServer(New(decide, Config{Gate: gate}), grpcserver.Config{}))
	c := ratelimitv3.NewRateLimitServiceClient(dial(t, address))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := c.ShouldRateLimit(ctx, request("d", "k=v")); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

func TestOutline(t *testing.T) {
	t.Parallel()
	one, descriptors := outline(marshal(t, request("one", "k=v", "k=w")))
	other, _ := outline(marshal(t, request("other", "k=v")))
	if string(one) != "one" || descriptors != 2 || string(other) != "other" || hashOf(one) == hashOf(other) {
		t.Errorf("the domains are %s and %s, with the numbers %d and %d; %d descriptors", one, other, hashOf(one), hashOf(other), descriptors)
	}
	for _, odd := range []string{"\x12\x00\x0a\x01a", "\x0a\x01b\x12\x00\x0a\x01a\x12\x00", "\x18\x01\x0a\x01a"} { // the last one counts, as in the decoder
		if domain, _ := outline([]byte(odd)); string(domain) != "a" {
			t.Errorf("%q has the domain %q", odd, domain)
		}
	}
	for _, bad := range []string{"", "\x0a", "\x0a\xff", "\xff\xff", "\x0a\x01a\x12", strings.Repeat("\x12\x00", 1<<20)} {
		if domain, n := outline([]byte(bad)); domain != nil {
			t.Errorf("%q has the domain %q and %d descriptors", bad, domain, n)
		}
	}
}
