package main

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// attack makes a call of the admin API again and again.
type attack struct {
	name string
	call func(context.Context, adminv1.AdminServiceClient) error
	code codes.Code // of its answers
}

// readTokenAttacks are what the holder of a token can do that is for looking, and for one domain.
func readTokenAttacks() []attack {
	var large []*adminv1.Entry
	for range 60 { // of a message that has 240 KB
		large = append(large, &adminv1.Entry{Key: strings.Repeat("k", 2000), Value: strings.Repeat("v", 2000)})
	}
	var many []*adminv1.Descriptor
	for range 100 {
		many = append(many, &adminv1.Descriptor{Entries: []*adminv1.Entry{{Key: "user", Value: rand.Text()}}})
	}
	return []attack{
		{"large failed calls", func(ctx context.Context, api adminv1.AdminServiceClient) error {
			_, err := api.Reset(ctx, &adminv1.ResetRequest{Domain: "shop", Entries: large, Reason: large[0].Value})
			return err
		}, codes.PermissionDenied},
		{"explanations of many descriptors", func(ctx context.Context, api adminv1.AdminServiceClient) error {
			_, err := api.Explain(ctx, &adminv1.ExplainRequest{Domain: "shop", Descriptors: many})
			return err
		}, codes.OK},
	}
}

// TestReadTokenAttacks: decisions do not feel what the holder of a read token does, and neither do the audit and those who start later.
func TestReadTokenAttacks(t *testing.T) {
	t.Parallel()
	db, full, read := redistest.Start(t), filepath.Join(t.TempDir(), "full"), filepath.Join(t.TempDir(), "read")
	for name, text := range map[string]string{full: "ann: full-token\n", read: "sam[domains=shop]: read-token\n"} {
		certstest.Write(t, name, []byte(text))
	}
	start := func() *daemon {
		d := startDaemon(t, db, controlRules, "ADMIN=true", "ADMIN_TOKEN_FILE="+full, "ADMIN_READ_TOKEN_FILE="+read, "REDIS_OP_TIMEOUT=10s")
		d.ready()
		return d
	}
	replicas := []*daemon{start(), start()}
	replicas[0].command("block", "shop", "user=eve", "--for", "1h", "--token-file", full)

	none := attack{"nothing", func(context.Context, adminv1.AdminServiceClient) error { return nil }, codes.OK}
	for _, a := range readTokenAttacks() {
		before, during, after := attacked(t, replicas, none), attacked(t, replicas, a), attacked(t, replicas, none)
		t.Logf("%s: p99 is %v, %v before and %v after", a.name, during, before, after)
		if during > 4*max(before, after)+100*time.Millisecond {
			t.Errorf("%s: p99 of decisions is %v; it is %v before and %v after", a.name, during, before, after)
		}
	}

	if n, err := strconv.Atoi(db.CLI("MEMORY", "USAGE", "rl:{audit}:acts", "SAMPLES", "0")); err != nil || n > 4096 {
		t.Errorf("one act takes %d bytes of Redis, %v", n, err)
	}
	said := start().command("audit", "--token-file", full)
	if strings.Count(said, "user=eve") != 1 {
		t.Errorf("a later replica has another audit:\n%s", said)
	}
	if said := replicas[0].command("audit", "--token-file", full); !strings.Contains(said, "sam") {
		t.Errorf("the audit says nothing of failed calls:\n%s", said)
	}
}

// attacked returns the 99th percentile of how long decisions take while replicas are attacked for a while.
func attacked(t *testing.T, replicas []*daemon, a attack) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	token := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer read-token")
	var all sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	for _, d := range replicas {
		client, api := d.client(), adminv1.NewAdminServiceClient(d.dial())
		all.Go(func() {
			for whole := context.WithoutCancel(ctx); ctx.Err() == nil; {
				begun := time.Now()
				if _, err := client.ShouldRateLimit(whole, request("user", rand.Text())); err != nil {
					t.Errorf("%s: a decision fails: %v", a.name, err)
				}
				mu.Lock()
				took = append(took, time.Since(begun))
				mu.Unlock()
			}
		})
		for range 4 {
			all.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
					if err := a.call(token, api); status.Code(err) != a.code {
						t.Errorf("%s: %v", a.name, err)
					}
				}
			})
		}
	}
	all.Wait()
	slices.Sort(took)
	return took[len(took)*99/100]
}
