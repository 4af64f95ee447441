package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
)

func TestClassOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want Class
	}{
		{context.DeadlineExceeded, Timeout},
		{fmt.Errorf("reading: %w", syscall.ETIMEDOUT), Timeout},
		{&net.DNSError{IsTimeout: true}, Timeout},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, Refused},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, Refused},
		{fmt.Errorf("writing: %w", syscall.EPIPE), Reset},
		{io.EOF, Reset},
		{errors.New("what is this"), Other},
	} {
		if got := ClassOf(c.err); got != c.want {
			t.Errorf("%v is of class %s, want %s", c.err, got, c.want)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`unexpected line: "shop_user_ann"`: "unexpected line: …",
		"line\nbreak":                      "line break",
		strings.Repeat("é", 150):           strings.Repeat("é", 100) + "…",
		"dial tcp 10.0.0.1:1: no route":    "dial tcp 10.0.0.1:1: no route",
	} {
		if got := Clean(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestBackoff: waits grow, up to a second and a millisecond, and start again after a successful attempt.
func TestBackoff(t *testing.T) {
	t.Parallel()
	var b Backoff
	for range 2 {
		for i := range 100 {
			if w := b.Next(); w <= 0 || w > lastBackoff+firstBackoff || i == 0 && w > firstBackoff+firstBackoff {
				t.Fatalf("wait %d is %v", i, w)
			}
		}
		b.Reset()
	}
}
