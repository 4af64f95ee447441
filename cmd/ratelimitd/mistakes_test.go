package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/cli"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// hurried is main with a second instead of ten minutes for detecting counters that are used only once.
func hurried() {
	serve := func(ctx context.Context, p cli.Process, is cli.Served) error {
		s, _, err := settings.Parse(p.Environ)
		if err != nil {
			return err
		}
		v, err := server.New(ctx, s, server.Config{Log: server.NewLogger(p.Stderr, s), Stdout: p.Stdout, Release: is.Release, SinglesAfter: time.Second})
		if err != nil {
			return err
		}
		return untilSignal(ctx, v)
	}
	os.Exit(cli.Run(context.Background(), os.Args, cli.Process{Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Serve: serve}))
}

// TestEachStreamHasACounter: a policy sends x-stream-id without an overlay for its rule, so nothing is limited, and the log warns. With
// the overlay, or if the last entry is a user, there is no warning.
func TestEachStreamHasACounter(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(`
domain: llm
descriptors:
  - {key: bare, descriptors: [{key: user, descriptors: [{key: stream, rate_limit: {unit: day, requests_per_unit: 1000}}]}]}
  - {key: laid, descriptors: [{key: user, descriptors: [{key: stream, rate_limit: {unit: day, requests_per_unit: 1000000, reserve: {by: stream, estimate: 10}}}]}]}
  - {key: plain, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("ratelimitd_hurried")
	testkit.Check(t, err)
	d := startCommand(t, exec.Command(path), dir) //nolint:noctx // it ends by a signal
	c := d.client()
	ask := func(hits uint64, key string, values ...[2]string) {
		r := &rlsv3.RateLimitRequest{Domain: "llm"}
		for _, v := range values {
			d := &rlcommonv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(hits)}
			d.Entries = append(d.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: key}, &rlcommonv3.RateLimitDescriptor_Entry{Key: "user", Value: v[0]})
			if v[1] != "" {
				d.Entries = append(d.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: "stream", Value: v[1]})
			}
			r.Descriptors = append(r.Descriptors, d)
		}
		decide(t, c, r)
	}
	round := 0
	testkit.Eventually(t, "the log says it", func() bool { // 100 streams check and are charged each time
		var streams, users [][2]string
		for j := range 100 {
			streams = append(streams, [2]string{fmt.Sprint("user", j%7), fmt.Sprint(round, "-", j)})
			users = append(users, [2]string{fmt.Sprint("user", (100*round+j)%300), ""})
		}
		round++
		for _, key := range []string{"bare", "laid"} {
			ask(0, key, streams...)
			ask(5, key, streams...)
		}
		ask(0, "plain", users...)
		ask(5, "plain", users...)
		return strings.Contains(d.Log.String(), "no limit applies, because nearly every request")
	}, d.Log.String)
	if text := d.Log.String(); strings.Count(text, "no limit applies") != 1 || !strings.Contains(text, "rule=llm.bare.user.stream") {
		t.Errorf("want a line about one rule:\n%s", text)
	}
	if n := d.metric(`ratelimitd_mistakes_total{mistake="single_use",rule="llm.bare.user.stream"}`); n == 0 {
		t.Error("it is not counted")
	}
	d.stop()
}

// costsWithoutReservation plays requests whose costs come without an ID, for [TestAlerts].
func costsWithoutReservation(t *testing.T) []string {
	t.Helper()
	d := startProcess(t, "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 100000, reserve: {estimate: 400}}}\n",
		"BACKEND_TYPE=memory")
	client := d.client()
	return minutes(d, 15, func(int) {
		r := request("user", "ann")
		decide(t, client, r)
		r.HitsAddend = 300
		decide(t, client, r)
	})
}
