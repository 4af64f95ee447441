package nearcache_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that nothing runs in the background.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
