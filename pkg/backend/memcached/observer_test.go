package memcached

import (
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// TestObserver checks that commands are counted as in the reference.
func TestObserver(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	var mu sync.Mutex
	got := map[Command]int{}
	ops := 0
	command := func(c Command) {
		mu.Lock()
		defer mu.Unlock()
		got[c]++
	}
	batch := func(b remote.Batch) {
		mu.Lock()
		defer mu.Unlock()
		ops += b.Ops
		if b.Node != s.Addr() || b.Err != nil || b.Failed != 0 || b.Duration <= 0 {
			t.Errorf("%+v", b)
		}
	}
	b := run(t, Config{Servers: []string{s.Addr()}, OpTimeout: slow, Now: at(7200), Observer: remote.Observer{Batch: batch}, Command: command}, true)
	testkit.Eventually(t, "the first take to be told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return ops > 0
	})
	mu.Lock()
	clear(got)
	ops = 0
	mu.Unlock()
	one(b, "a")
	one(b, "a")
	looks := []backend.Op{opOn("a"), opOn("b"), opOn("c")}
	for i := range looks {
		looks[i].Mode = backend.Peek
	}
	b.Apply(t.Context(), looks)
	mu.Lock()
	defer mu.Unlock()
	for want, n := range map[Command]int{
		{Name: CommandIncrement, Code: CodeMiss}: 1, {Name: CommandAdd, Code: CodeSuccess}: 1, {Name: CommandIncrement, Code: CodeSuccess}: 1,
		{Name: CommandMultiGet, Code: CodeSuccess, Keys: 3, Found: 1}: 1,
	} {
		if got[want] != n {
			t.Errorf("%+v %d times, want %d; all are %v", want, got[want], n, got)
		}
	}
	if ops != 5 {
		t.Errorf("%d ops, want 5", ops)
	}
}
