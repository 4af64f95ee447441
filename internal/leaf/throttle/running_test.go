package throttle

import "testing"

// TestRunning: so much may be in progress with one key, and in all; what has ended makes room, and is not remembered.
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
	begin("b", false) // since there are three in all
	one()
	four := begin("b", true)
	for _, done := range []func(){two, three, four} {
		done()
	}
	if len(r.byKey) > 0 || r.all != 0 {
		t.Errorf("%v and %d are left", r.byKey, r.all)
	}
}
