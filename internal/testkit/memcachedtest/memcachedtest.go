// Package memcachedtest runs real memcached processes for tests, on free ports of 127.0.0.1. They end with the test that
// started them.
package memcachedtest

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const (
	patience = testkit.Patience
	hangs    = time.Second // time without an answer after which a process counts as hanging
)

// Server is a memcached process.
type Server struct {
	*testkit.Server

	t testing.TB
}

// Start starts a server with these arguments in addition to its address, and waits until it accepts connections.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if os.Getuid() == 0 {
		args = append(args, "-u", "root")
	}
	ready := listens
	if slices.Contains(args, "-Z") || slices.Contains(args, "-Y") {
		ready = connects
	}
	return &Server{t: tb, Server: testkit.Start(tb, &testkit.Program{
		Name: "memcached", Package: "memcached",
		Args: func(port int) []string {
			return append([]string{"-l", "127.0.0.1", "-p", fmt.Sprint(port), "-U", "0", "-t", "2"}, args...)
		},
		Ready: func(s *testkit.Server, _ string) bool { return ready(s) },
	})}
}

// listens reports whether the process accepts connections and answers. If another process has taken the port, this one reports that and
// ends.
func listens(s *testkit.Server) bool {
	stats, err := send(s.Addr(), "stats", patience)
	return err == nil && strings.Contains(stats, fmt.Sprintf("STAT pid %d\n", s.PID()))
}

// connects reports whether the process accepts connections, for servers that use TLS or require a login.
func connects(s *testkit.Server) bool {
	conn, err := net.Dial("tcp", s.Addr()) //nolint:noctx // on loopback
	return err == nil && conn.Close() == nil
}

// Stop suspends the process and waits until it no longer answers. Connections stay open. It does not support TLS.
func (s *Server) Stop() {
	s.t.Helper()
	s.Server.Stop()
	testkit.Eventually(s.t, "memcached, which is suspended, no longer answers", func() bool {
		_, err := send(s.Addr(), "version", hangs)
		return err != nil
	})
}

// Send sends a command, followed by a line break and its data, if any, and returns the reply without the last line break. It does not
// support TLS.
func (s *Server) Send(command string) string {
	s.t.Helper()
	reply, err := send(s.Addr(), command, patience)
	if err != nil {
		s.t.Fatalf("memcachedtest: %s: %v", command, err)
	}
	return reply
}

func send(addr, command string, within time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, patience) //nolint:noctx // bounded by patience
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // every command has been answered
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.ReplaceAll(command, "\n", "\r\n")); err != nil {
		return "", err
	}
	var lines []string
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		lines = append(lines, strings.TrimRight(line, "\r\n"))
		many := strings.HasPrefix(lines[0], "VALUE ") || strings.HasPrefix(lines[0], "STAT ") || strings.HasPrefix(lines[0], "key=")
		if !many || lines[len(lines)-1] == "END" {
			return strings.Join(lines, "\n"), nil
		}
	}
}

// Items returns the expiry of each item, by name.
func (s *Server) Items() map[string]time.Time {
	s.t.Helper()
	var dump string
	testkit.Eventually(s.t, "memcached's crawler, which does the housekeeping too, has time", func() bool {
		dump = s.Send("lru_crawler metadump all")
		return !strings.HasPrefix(dump, "BUSY")
	})
	items := map[string]time.Time{}
	for line := range strings.Lines(dump) {
		var name, expires string
		if n, err := fmt.Sscanf(line, "key=%s exp=%s", &name, &expires); n < 2 {
			if strings.TrimSpace(line) == "END" {
				continue
			}
			s.t.Fatalf("memcachedtest: an item %q: %v", line, err)
		}
		key, err := url.PathUnescape(name)
		if err != nil {
			s.t.Fatalf("memcachedtest: %v", err)
		}
		seconds, err := strconv.ParseInt(expires, 10, 64)
		if err != nil {
			s.t.Fatalf("memcachedtest: %v", err)
		}
		items[key] = time.Unix(seconds, 0)
	}
	return items
}
