// Package testkit contains helpers for the tests of several packages: waiting for a condition, reading a log that is being written,
// listeners and proxies on loopback, and running servers and ratelimitd as processes. Everything that it starts for a test ends with the
// test. Product code must not import it, which internal/testkit/archtest checks.
package testkit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Patience is the maximum wait, on a busy machine, for something that is usually immediate.
const Patience = time.Minute

// Failer can fail a test: a [testing.TB], or the script of a testscript.
type Failer interface {
	Fatalf(format string, args ...any)
}

// Check ends the test if there is an error.
func Check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Eventually waits until ok returns true, and fails the test if that takes longer than [Patience]: what is then said not
// to have happened, with what each of seen returns, such as the String method of a log. It returns how long it took.
func Eventually(tb Failer, what string, ok func() bool, seen ...func() string) time.Duration {
	if t, helps := tb.(testing.TB); helps {
		t.Helper()
	}
	begin := time.Now()
	if !Poll(Patience, ok) {
		var last strings.Builder
		for _, see := range seen {
			last.WriteString("\n" + see())
		}
		tb.Fatalf("not within %v: %s%s", Patience, what, last.String())
	}
	return time.Since(begin)
}

// Poll calls ok every few milliseconds until it returns true, and reports whether that happened within limit.
func Poll(limit time.Duration, ok func() bool) bool {
	const longest = 5 * time.Millisecond
	pause := time.Millisecond
	for begin := time.Now(); !ok(); pause = min(2*pause, longest) {
		if time.Since(begin) > limit {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Run runs a function in the background. stop, which the end of the test also calls, ends its context and waits for it. The test fails if
// the function returns an error or does not end within [Patience].
func Run(tb testing.TB, run func(ctx context.Context) error) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		tb.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				tb.Errorf("what ran beside the test ended with: %v", err)
			}
		case <-time.After(Patience):
			tb.Errorf("what runs beside the test was told to end, and has not within %v", Patience)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// Buffer stores written data, such as a log, and can be read at the same time. The zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns everything that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Fetch makes an HTTP request on its own connection, so that no goroutines remain, and returns the answer.
func Fetch(ctx context.Context, method, url, body string) (status int, answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
}

// WriteFile writes a file, and makes the directories above it.
func WriteFile(tb testing.TB, file, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}
