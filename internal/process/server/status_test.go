package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestReloadWithoutControlPlane: a reload from an unreachable control plane fails immediately. Other invalid calls fail too, and
// Status answers without rules.
func TestReloadWithoutControlPlane(t *testing.T) {
	v := inProcess(t, "ADMIN=true", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1")
	stop := testkit.Run(t, v.Run)
	defer stop()
	conn, err := grpc.NewClient("unix:"+v.adminSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c, ctx := adminv1.NewAdminServiceClient(conn), t.Context()
	long := strings.Repeat("x", 501)
	for _, tt := range []struct {
		call string
		ask  func() error
		code codes.Code
		text string
	}{
		{
			"ReloadRules", func() error { _, err := c.ReloadRules(ctx, &adminv1.ReloadRulesRequest{}); return err },
			codes.Unavailable, "no control plane at 127.0.0.1:1",
		},
		{
			"ReloadRules, dry", func() error { _, err := c.ReloadRules(ctx, &adminv1.ReloadRulesRequest{DryRun: true}); return err },
			codes.FailedPrecondition, "only for a real reload",
		},
		{
			"ReloadRules, long reason", func() error { _, err := c.ReloadRules(ctx, &adminv1.ReloadRulesRequest{Reason: long}); return err },
			codes.InvalidArgument, "at most 500",
		},
		{"Drain, long reason", func() error { _, err := c.Drain(ctx, &adminv1.DrainRequest{Reason: long}); return err }, codes.InvalidArgument, "at most 500"},
	} {
		if err := tt.ask(); status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %v with %q", tt.call, err, tt.code, tt.text)
		}
	}
	s, err := c.Status(ctx, &adminv1.StatusRequest{})
	if err != nil || s.GetHealthy() || s.GetRules().GetLoaded() != nil || !strings.Contains(s.GetRules().GetMissing(), "no control plane") {
		t.Errorf("status without rules: %v, %v", s, err)
	}
}

func TestDrain(t *testing.T) {
	h := health.NewTracker()
	d := &shutdown{health: h, component: h.Add(draining, true, "")}
	rules := h.Add("rules", true, "")
	for _, step := range []struct {
		undo, dry, changed, healthy bool
	}{
		{undo: true, healthy: true},
		{dry: true, changed: true, healthy: true},
		{changed: true},
		{},
		{undo: true, dry: true, changed: true},
		{undo: true, changed: true, healthy: true},
		{changed: true},
	} {
		got, err := d.drain(step.undo, step.dry)
		if err != nil || got.GetChanged() != step.changed || !got.GetOtherwiseHealthy() || h.OK() != step.healthy || (got.GetDrained() == nil) != step.undo {
			t.Errorf("%+v: %+v, %v, healthy %t", step, got, err, h.OK())
		}
	}
	rules.Set(false, "gone")
	if got, _ := d.drain(true, true); got.GetOtherwiseHealthy() {
		t.Error("a server without rules is otherwise healthy")
	}
	if d.stop() <= 0 {
		t.Error("the drained time is lost")
	}
	for _, undo := range []bool{false, true} {
		if _, err := d.drain(undo, false); !errors.Is(err, admin.ErrStopping) || h.OK() {
			t.Errorf("undo=%t while stopping: %v, healthy %t", undo, err, h.OK())
		}
	}
}

// onDemand is a source of rules that loads only on request.
type onDemand struct {
	rulesSource

	load func() error
}

func (o onDemand) ReloadNow(context.Context) error { return o.load() }

// TestReloadFirst: the first reload reports all rules as new.
func TestReloadFirst(t *testing.T) {
	v := inProcess(t)
	rules := []descriptors.Source{{Name: "a.yaml", Data: []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n")}}
	v.watcher = onDemand{v.watcher, func() error { return v.loads.Update(rules, nil) }}
	for _, want := range []int{2, 0} {
		r, err := v.ReloadRules(t.Context(), &access.Who{Full: true}, false)
		if err != nil || len(r.GetChanges()) != want || r.GetInvalid() {
			t.Errorf("%+v, %v; want %d changes", r, err, want)
		}
	}
	testkit.Run(t, v.Run)() // closes what is open
}

// TestSays: the status of a replica is the health of its worst component, and whether it is drained.
func TestSays(t *testing.T) {
	v := inProcess(t)
	part := v.health.Add("extra", true, "")
	rules := []descriptors.Source{{Name: "a.yaml", Data: []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n")}}
	version := ""
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, "failing,"},
		{func() error { return v.loads.Update(rules, nil) }, "ok,"},
		{func() error { part.Degrade("slow"); return nil }, "degraded,"},
		{func() error { _, err := v.shutdown.drain(false, false); return err }, "failing,drained,"},
		{func() error { _, err := v.shutdown.drain(true, false); return err }, "degraded,"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if o := v.loads.Accepted(); o != nil {
			version = o.Version
		}
		if got := v.replicaStatus(); got != step.want+version {
			t.Errorf("status %q, want %q", got, step.want+version)
		}
	}
	testkit.Run(t, v.Run)() // closes what is open
}
