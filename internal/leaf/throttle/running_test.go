package throttle

import "testing"

// TestRunning checks the bounds per key and in total, and that ended operations free their places and are forgotten.
func TestRunning(t *testing.T) {
	t.Parallel()
	r := AtMost[string](2, 3)
	begin := func(key string, want bool) func() {
		t.Helper()
		if full := r.Full(key); full == want {
			t.Errorf("%s is full: %t", key, full)
		}
		done, ok := r.Begin(key)
		if ok != want {
			t.Fatalf("%s may begin: %t, want %t", key, ok, want)
		}
		return done
	}
	one, two := begin("a", true), begin("a", true)
	begin("a", false)
	three := begin("b", true)
	begin("b", false) // three in total
	one()
	four := begin("b", true)
	for _, done := range []func(){two, three, four} {
		done()
	}
	if len(r.byKey) > 0 || r.all != 0 {
		t.Errorf("%v and %d are left", r.byKey, r.all)
	}
}
