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

// TestTurnsOfOneName: read-only callers on this machine do not block a caller of the same name with more permissions.
func TestTurnsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		turns, looks, changes := newTurns(), &access.Who{Name: "this machine"}, &access.Who{Name: "this machine", Full: true}
		var all sync.WaitGroup
		for range maxOfCaller {
			all.Go(func() {
				if end, err := turns.take(ctx, looks); err == nil {
					<-ctx.Done()
					end()
				}
			})
		}
		synctest.Wait()
		if _, err := turns.take(ctx, looks); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("another read-only caller: %v", err)
		}
		if end, err := turns.take(ctx, changes); err != nil {
			t.Errorf("a caller with all permissions: %v", err)
		} else {
			end()
		}
		cancel()
		all.Wait()
	})
}
