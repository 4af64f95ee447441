package redis

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// TestF30_TokensThatEnd changes the password in a file again and again while calls continue. Connections must be renewed before the old
// password expires, and no call may fail, even if there is no valid password for longer than a connection's lifetime.
func TestF30_TokensThatEnd(t *testing.T) {
	testkit.NotShort(t)
	s := redistest.Start(t, "user app on >0 ~* +@all", "user default on nopass ~* +@all")
	file := filepath.Join(t.TempDir(), "auth")
	write := func(text string) { // atomically, as writers of tokens should
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Error(err)
		}
	}
	write("app:0\n")
	b := run(t, Config{URL: s.Addr(), AuthFile: file, AuthMaxAge: minAuthAge, OpTimeout: slow, DialTimeout: slow, PoolSize: nearWriters}, true)
	renewed := func(what string, more uint64) {
		t.Helper()
		from := b.main.opened.Load()
		testkit.Eventually(t, what, func() bool { return b.main.opened.Load() >= from+more })
	}
	l := newLoad(b, 300, slow)
	for i := range 4 {
		old, now := fmt.Sprint(i), fmt.Sprint(i+1)
		s.CLI("ACL", "SETUSER", "app", ">"+now)
		write("app:" + now)
		s.CLI("ACL", "SETUSER", "app", "<"+old)
		renewed("new connections with the new password", 2)
	}
	write("app:wrong")
	before, calls := b.main.opened.Load(), func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.answers)
	}
	from := calls()
	time.Sleep(2 * minAuthAge) // longer than the lifetime of a connection; there is no event to wait for
	if opened := b.main.opened.Load(); opened != before || calls() == from {
		t.Errorf("%d connections were opened with a wrong password, and %d calls made", opened-before, calls()-from)
	}
	write("app:4")
	renewed("new connections with a password that is right again", 2)
	l.end()
	if n := failures(l.answers); n > 0 || len(l.answers) < 100 {
		t.Errorf("%d of %d calls failed: %v", n, len(l.answers), failed(l.answers))
	}
	if open := b.Connections(); open != nearWriters {
		t.Errorf("%d connections are open, want %d", open, nearWriters)
	}
}

// TestF31_LostLogin checks that a connection whose login Redis forgets, as after the expiry of a token, is replaced by one with the
// current content of the file, and that the affected call succeeds and counts once.
func TestF31_LostLogin(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "user app on >first ~* +@all", "user default off")
	file := filepath.Join(t.TempDir(), "auth")
	write := func(text string) {
		testkit.WriteFile(t, file, text)
	}
	write("app:first")
	var mu sync.Mutex
	var conns []io.Writer
	const reset, done = "*1\r\n$5\r\nRESET\r\n", "+RESET\r\n"
	p := testkit.NewProxy(t, s.Addr())
	p.Replies(func(to io.Writer, from io.Reader) {
		mu.Lock()
		conns = append(conns, from.(io.Writer))
		mu.Unlock()
		for buf := make([]byte, 64<<10); ; {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if _, err := to.Write(bytes.ReplaceAll(buf[:n], []byte(done), nil)); err != nil {
				return
			}
		}
	})
	for _, format := range []KeyFormat{OurKeys, ReferenceKeys} {
		write("app:first")
		s.CLI("--user", "app", "--pass", "first", "--no-auth-warning", "FLUSHALL")
		b := run(t, Config{URL: p.Addr(), AuthFile: file, KeyFormat: format, OpTimeout: slow, DialTimeout: slow}, true)
		first := one(b, 1)
		for i := range uint64(5) {
			if i == 2 { // the next one is valid for new connections
				s.CLI("--user", "app", "--pass", "first", "--no-auth-warning", "ACL", "SETUSER", "app", ">second")
				write("app:second")
			}
			mu.Lock()
			for _, c := range conns {
				_, _ = io.WriteString(c, reset) // close some connections
			}
			mu.Unlock()
			op := one(b, 1)
			if op.Err != nil || first.Err != nil || op.Decision.Left != first.Decision.Left-i-1 {
				t.Errorf("format %d, call %d: %v, %d left; the first one had %d, %v", format, i, op.Err, op.Decision.Left, first.Decision.Left, first.Err)
			}
		}
	}
}

// TestLoginNamesVariable checks that the error of a failed login names the variable for that server.
func TestLoginNamesVariable(t *testing.T) {
	t.Parallel()
	open, locked := redistest.Start(t), redistest.Start(t, "requirepass secret")
	for name, c := range map[string]Config{
		"none is needed":           {URL: open.Addr(), Auth: "password"},
		"it is missing":            {URL: locked.Addr()},
		"it is wrong":              {URL: locked.Addr(), Auth: "password"},
		"there is no such user":    {URL: locked.Addr(), Auth: "user:password"},
		"none is needed, a second": {URL: open.Addr(), PerSecond: &Config{URL: open.Addr(), Auth: "password", DialTimeout: slow}},
		"it is missing, a second":  {URL: open.Addr(), PerSecond: &Config{URL: locked.Addr(), DialTimeout: slow}},
	} {
		c.DialTimeout = slow
		b := opened(t, c)
		e, ok := errors.AsType[*remote.Error](reached(t, b))
		if !ok || e.Class != ClassNoAuth || !strings.HasSuffix(e.Text, " The password is REDIS_AUTH, or REDIS_PERSECOND_AUTH for limits per second") {
			t.Errorf("%s: %v", name, e)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAge checks that connections are renewed before their credentials expire, and not all at the same time.
func TestAge(t *testing.T) {
	t.Parallel()
	for within, c := range map[[2]time.Duration]Config{
		{8 * time.Minute, 12 * time.Minute}:                  {},
		{10*time.Minute + 30*time.Second, 810 * time.Second}: {AuthMaxAge: 15 * time.Minute},
		{700 * time.Millisecond, 900 * time.Millisecond}:     {AuthMaxAge: time.Second},
	} {
		seen := map[time.Duration]bool{}
		for range 100 {
			age := c.age()
			if seen[age] = true; age < within[0] || age > within[1] {
				t.Errorf("%v: renewed after %v, want %v", c.AuthMaxAge, age, within)
			}
		}
		if len(seen) < 50 {
			t.Errorf("%v: only %d different ages of 100", c.AuthMaxAge, len(seen))
		}
	}
}
