package task_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newGroup(bound time.Duration) *task.Group {
	return task.NewGroup(slog.New(slog.DiscardHandler), bound)
}

// journal records events in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// noted returns the events so far.
func (j *journal) noted() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// waits returns a task that takes a second to end, and records its end.
func (j *journal) waits(name string) task.Func {
	return task.Func{Name: name, Do: func(ctx context.Context) error {
		<-ctx.Done()
		j.note(name + " stops")
		time.Sleep(time.Second)
		j.note(name + " stopped")
		return ctx.Err()
	}}
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(time.Minute)
		g.Add(j.waits("store"), j.waits("server"))
		g.Add(j.waits("drain"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		want := []string{"drain stops", "drain stopped", "server stops", "server stopped", "store stops", "store stopped"}
		if d := cmp.Diff(want, j.noted()); d != "" {
			t.Errorf("order (-want +got):\n%s", d)
		}
	})
}

func TestGroupEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(time.Minute)
		burnt := errors.New("the house is on fire")
		g.Add(
			j.waits("store"),
			task.Func{Name: "server", Do: func(context.Context) error { return burnt }},
			task.Func{Name: "done early", Do: func(context.Context) error { return nil }},
		)
		err := g.Run(t.Context())
		if !errors.Is(err, burnt) || !strings.Contains(err.Error(), "server: ") {
			t.Errorf("Run = %v, want the error of server, with its name", err)
		}
		if d := cmp.Diff([]string{"store stops", "store stopped"}, j.noted()); d != "" {
			t.Errorf("the others stop too (-want +got):\n%s", d)
		}
	})
}

func TestGroupReportsErrorsOfStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(time.Minute)
		full := errors.New("disk full")
		g.Add(task.Func{Name: "store", Do: func(ctx context.Context) error { <-ctx.Done(); return full }})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Run(ctx); !errors.Is(err, full) {
			t.Errorf("Run = %v, want %v", err, full)
		}
	})
}

func TestGroupStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(10 * time.Second)
		release := make(chan struct{})
		g.Add(j.waits("store"), task.Func{Name: "stubborn", Do: func(context.Context) error { <-release; return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		err := g.Run(ctx)
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("stopping took %v, want 10s", took)
		}
		if err == nil || !strings.Contains(err.Error(), "still running after 10s: store, stubborn") {
			t.Errorf("Run = %v, want an error that names what still runs", err)
		}
		synctest.Wait()
		if d := cmp.Diff([]string{"store stops"}, j.noted()); d != "" {
			t.Errorf("tasks before it are told to stop all the same (-want +got):\n%s", d)
		}
		close(release)
		time.Sleep(time.Minute)
	})
}
