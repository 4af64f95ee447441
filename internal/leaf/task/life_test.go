package task_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
)

func TestLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l task.Life
		ran := make(chan error, 1)
		ended := false
		go func() {
			ran <- l.Run(t.Context(), func(ctx context.Context) {
				<-ctx.Done()
				ended = true
			})
		}()
		synctest.Wait()
		if err := l.Run(t.Context(), func(context.Context) { t.Error("a second one runs") }); !errors.Is(err, task.ErrTwice) {
			t.Errorf("a second Run: %v", err)
		}
		l.End()
		if !ended {
			t.Error("End did not wait")
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
		l.End() // a second call is harmless
	})
}

func TestLifeIsOver(t *testing.T) {
	t.Parallel()
	var l task.Life
	l.End()
	if err := l.Run(t.Context(), func(context.Context) { t.Error("it runs") }); !errors.Is(err, task.ErrTwice) {
		t.Errorf("Run after End: %v", err)
	}
}
