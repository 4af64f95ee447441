package xds_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane is a control plane like Envoy Gateway's: a snapshot cache of go-control-plane, keyed by node id, behind its
// server.
type plane struct {
	cache   cachev3.SnapshotCache
	server  *grpc.Server
	address string
	stop    context.CancelFunc

	mu      sync.Mutex
	answers []answer
}

// answer is a client's answer to a response.
type answer struct{ nonce, version, problem string }

// newPlane serves on a free port until the test ends.
func newPlane(t *testing.T, options ...grpc.ServerOption) *plane {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &plane{cache: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil), server: grpc.NewServer(options...), stop: stop}
	note := func(nonce, version, problem string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answers = append(p.answers, answer{nonce, version, problem})
	}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, serverv3.NewServer(ctx, p.cache, serverv3.CallbackFuncs{
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			note(r.GetResponseNonce(), r.GetVersionInfo(), r.GetErrorDetail().GetMessage())
			return nil
		},
		StreamDeltaRequestFunc: func(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			note(r.GetResponseNonce(), "", r.GetErrorDetail().GetMessage())
			return nil
		},
	}))
	p.address = serve(t, p.server)
	t.Cleanup(p.end)
	return p
}

// end stops the control plane, which ends all streams.
func (p *plane) end() {
	p.stop()
	p.server.Stop()
}

// serve serves on a free port until the server is stopped, which the caller does.
func serve(t *testing.T, s *grpc.Server) string {
	t.Helper()
	l := testkit.Listen(t)
	testkit.Run(t, func(context.Context) error { // whose end is awaited after the caller's Stop
		if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	return l.Addr().String()
}

// set publishes resources as a version.
func (p *plane) set(t *testing.T, version string, resources ...types.Resource) {
	t.Helper()
	p.setFor(t, "default", version, resources...)
}

func (p *plane) setFor(t *testing.T, node, version string, resources ...types.Resource) {
	t.Helper()
	s, err := cachev3.NewSnapshot(version, map[resourcev3.Type][]types.Resource{resourcev3.RateLimitConfigType: resources})
	if err == nil {
		err = p.cache.SetSnapshot(t.Context(), node, s)
	}
	if err != nil {
		t.Error(err) // not Fatal, as this may run in other goroutines than the test's
	}
}

// all returns the answers so far, first requests included.
func (p *plane) all() []answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.answers)
}

// problem waits for a problem, and discards all answers.
func (p *plane) problem(t *testing.T) (text string) {
	t.Helper()
	testkit.Eventually(t, "there is a problem", func() bool {
		for _, a := range p.all() {
			if a.problem != "" {
				text = a.problem
			}
		}
		return text != ""
	})
	return text
}

// config returns what a control plane sends for a domain: one key, with a limit per day.
func config(name, domain string, limit uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_DAY, RequestsPerUnit: limit},
	}}}
}

// follower is a client that follows a control plane, and the outcomes.
type follower struct {
	*xds.Client

	rules *configwatch.Watch
	log   testkit.Buffer
	end   func() // stops the client

	mu      sync.Mutex
	loads   []string // the domains and limits of each set, or "invalid"
	loadsAt []time.Time
	events  map[xds.Event]int
	current bool
	waiting string
}

// quick makes a client reconnect at once.
func quick() xds.Backoff {
	return xds.Backoff{First: 20 * time.Millisecond, Initial: 20 * time.Millisecond, Max: 50 * time.Millisecond}
}

// follow follows a control plane until the test ends.
func follow(t *testing.T, c xds.Config) *follower {
	t.Helper()
	return followWith(t, c, descriptors.Options{})
}

func followWith(t *testing.T, c xds.Config, o descriptors.Options) *follower {
	t.Helper()
	f := &follower{events: map[xds.Event]int{}}
	log := slog.New(slog.NewTextHandler(&f.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	f.rules = configwatch.New(log, configwatch.Config{
		Options: o,
		Empty:   true,
		Check:   configwatch.Quiet().Check,
		Compare: configwatch.Quiet().Compare,
		Loaded:  func(set *descriptors.Set, _ int, _ bool) { f.loaded(text(set)) },
		Invalid: func(error) { f.loaded("invalid") },
	})
	if c.Backoff == (xds.Backoff{}) {
		c.Backoff = quick()
	}
	c.Hooks = xds.Hooks{
		Event:   func(e xds.Event) { f.mu.Lock(); f.events[e]++; f.mu.Unlock() },
		Current: func(yes bool) { f.mu.Lock(); f.current = yes; f.mu.Unlock() },
		Waiting: func(why string) { f.mu.Lock(); f.waiting = why; f.mu.Unlock() },
	}
	f.Client = xds.New(log, c, f.rules)
	f.end = testkit.Run(t, f.Run)
	return f
}

// text returns a set in a form to compare: each domain with the numbers of its limits or, for a large set, the number
// of rules.
func text(set *descriptors.Set) string {
	rules := slices.Collect(set.Rules())
	if len(rules) > 100 {
		return strconv.Itoa(len(rules)) + " rules"
	}
	var words []string
	for d := range set.Domains() {
		word := d.Name
		for _, r := range rules {
			if strings.HasPrefix(r.Path, d.Name+".") && r.RateLimits.Len() > 0 {
				word += "=" + strconv.Itoa(int(r.RateLimits.At(0).RequestsPerUnit))
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func (f *follower) loaded(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads, f.loadsAt = append(f.loads, what), append(f.loadsAt, time.Now())
}

func (f *follower) outcomes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.loads)
}

func (f *follower) count(e xds.Event) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.events[e]
}

func (f *follower) isCurrent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// wants waits until the last load has the expected outcome.
func (f *follower) wants(t *testing.T, want string) {
	t.Helper()
	var all []string
	testkit.Eventually(t, fmt.Sprintf("the last load is %q", want), func() bool {
		all = f.outcomes()
		return len(all) > 0 && all[len(all)-1] == want
	}, func() string { return fmt.Sprintf("%q", all) }, f.log.String)
}

// serves checks the current rules.
func (f *follower) serves(t *testing.T, want string) {
	t.Helper()
	set := f.rules.Rules()
	if set == nil {
		t.Fatalf("no rules; want %q", want)
	}
	if got := text(set); got != want {
		t.Errorf("the rules are %q; want %q", got, want)
	}
}

// protocols has the names of both protocols, and whether each is delta.
func protocols() map[string]bool { return map[string]bool{"sotw": false, "delta": true} }
