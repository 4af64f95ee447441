package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ratelimitd/ratelimitd/internal/cli"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rls"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// playOnMemory plays a trace against a server over counters in memory, on virtual time that begins with a window of every
// length used. Beside its rules a trace may have a table of tenants, an overlay, and settings of answers.
func playOnMemory(t *testing.T, parts map[string]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store, registry := memory.New(memory.Config{}), stats.New()
		o := operators{controls: controls.New(controls.Config{}), tenants: tenants.New(tenants.Config{Files: true})}
		sealer := new(limiter.Sealer)
		sealer.SetKeys([]byte(t.Name()))
		l := limiter.New(store, registry, limiter.Config{Overrides: o.controls.Overrides(), Plans: o.tenants.Plans(), Reservations: sealer})
		reload := func(rules string) error { return loadRules(l, rules, parts["overlay.yaml"]) }
		testkit.Check(t, reload(parts["rules.yaml"]))
		if table, ok := parts["tenants.csv"]; ok {
			testkit.Check(t, o.tenants.Load([]tenants.Input{{Name: "tenants.csv", Reader: strings.NewReader(table)}}))
		}
		client, stop := serveTraces(t, l, answers(t, parts["settings"]))
		start := time.Now() // midnight UTC of a day that begins no week, but none is used
		play(t, &traced{
			client: client,
			reset: func(ctx context.Context, domain, descriptor string, force bool) (bool, error) {
				return resetCounter(ctx, l, domain, descriptor, force)
			},
			reload:  reload,
			sleep:   func(until time.Duration) error { return sleepUntil(start.Add(until)) },
			command: o.command,
			metric:  func(series string) (string, error) { return metricOf(registry, series) },
		}, parts)
		stop()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// answers returns how a server with these settings, one a line, answers; times are told in any case.
func answers(t *testing.T, environ string) rls.Config {
	t.Helper()
	if environ == "" {
		return rls.Config{Headers: rls.Headers{Enabled: true}, DecisionMetadata: true}
	}
	s, notices, err := settings.Parse(append(strings.Fields(environ), "BACKEND_TYPE=memory"))
	if err != nil || len(notices) > 0 {
		t.Fatal(notices, err)
	}
	return rls.Config{Headers: server.AnswerHeaders(&s), DecisionMetadata: true}
}

// metricOf returns the value of a series.
func metricOf(r *stats.Registry, series string) (string, error) {
	w := httptest.NewRecorder()
	r.Handler(stats.PrometheusConfig{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	_, after, found := strings.Cut("\n"+w.Body.String(), "\n"+series+" ")
	if !found {
		return "", fmt.Errorf("there is no series %s", series)
	}
	value, _, _ := strings.Cut(after, "\n")
	return value, nil
}

// operators are those who change what stands above and beside the rules.
type operators struct {
	controls *controls.Controls
	tenants  *tenants.Tenants
}

// command does what a command of ratelimitd does, whose flags are read by that.
func (o operators) command(ctx context.Context, args []string) error {
	cmd, rest, err := cli.Command().Find(args) //nolint:contextcheck // nothing of it runs
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	given := cmd.Flags().Args()
	if len(given) != 2 {
		return fmt.Errorf("%q: want a domain and one descriptor", given)
	}
	entries, err := cli.Entries(given[1])
	if err != nil {
		return err
	}
	c := &override.Control{Domain: given[0]}
	for _, e := range entries {
		c.Entries = append(c.Entries, override.Entry{Key: string(e.Key), Value: string(e.Value)})
	}
	if cmd.Name() == "lift" {
		var ids []string
		for _, known := range o.controls.List(ctx) {
			if known.Text() == c.Text() {
				ids = append(ids, known.ID)
			}
		}
		if len(ids) == 0 {
			return errors.New("there is no such control")
		}
		_, err := o.controls.Lift(ctx, ids, false)
		return err
	}
	kind := slices.IndexFunc(override.Kinds(), func(k override.Kind) bool { return k.String() == cmd.Name() })
	if kind < 0 {
		return fmt.Errorf("this test cannot play %s", cmd.Name())
	}
	c.Kind = override.Kinds()[kind]
	if c.Below, err = cmd.Flags().GetBool("below"); err != nil {
		return err
	}
	if to := cmd.Flags().Lookup("to"); to != nil {
		if c.To, err = cli.ParseOverride(to.Value.String()); err != nil {
			return err
		}
	}
	span, err := time.ParseDuration(cmd.Flags().Lookup("for").Value.String())
	if err != nil {
		return err
	}
	_, err = o.controls.Set(ctx, c, span, false)
	return err
}

// serveTraces serves what l decides, until stop is called.
func serveTraces(t *testing.T, l *limiter.Limiter, c rls.Config) (client rlsv3.RateLimitServiceClient, stop func()) { //nolint:ireturn // what the generated code has
	t.Helper()
	s := grpcserver.New(rls.New(l, c), grpcserver.Config{})
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///trace",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	testkit.Check(t, err)
	return rlsv3.NewRateLimitServiceClient(conn), func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Shutdown(context.WithoutCancel(t.Context()))
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	}
}

// sleepUntil sleeps until at, which must not have passed.
func sleepUntil(at time.Time) error {
	left := time.Until(at)
	if left < 0 {
		return fmt.Errorf("it is %v later already", -left)
	}
	time.Sleep(left)
	return nil
}

func loadRules(l *limiter.Limiter, rules, over string) error {
	o := descriptors.Options{Strict: true}
	if over != "" {
		o = overlay.With(o, []descriptors.Source{{Name: "overlay.yaml", Data: []byte(over)}})
	}
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(rules)}}, o)
	if err != nil {
		return fmt.Errorf("loading the rules: %w", err)
	}
	l.SetRules(set)
	return nil
}

func resetCounter(ctx context.Context, l *limiter.Limiter, domain, descriptor string, force bool) (done bool, err error) {
	var entries []descriptors.Entry
	for e := range strings.SplitSeq(descriptor, ",") {
		key, value, _ := strings.Cut(e, "=")
		entries = append(entries, descriptors.Entry{Key: []byte(key), Value: []byte(value)})
	}
	c, err := l.Reset(ctx, domain, entries, force)
	if err != nil {
		return false, err
	}
	return c.Decision.Penalty == 0, nil
}
