package admin

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
)

// Callers on this machine who may only look keep none out who has the same name and may change something.
func TestTurnsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		turns, looks, changes := newTurns(), &access.Who{Name: "this machine"}, &access.Who{Name: "this machine", Full: true}
		var all sync.WaitGroup
		for range mostOfCaller {
			all.Go(func() {
				if end, err := turns.take(ctx, looks); err == nil {
					<-ctx.Done()
					end()
				}
			})
		}
		synctest.Wait()
		if _, err := turns.take(ctx, looks); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one more that looks: %v", err)
		}
		if end, err := turns.take(ctx, changes); err != nil {
			t.Errorf("one that changes something: %v", err)
		} else {
			end()
		}
		cancel()
		all.Wait()
	})
}
