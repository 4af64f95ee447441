package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// Twemproxy starts Twemproxy (nutcracker in Debian) in front of the servers at addrs, which share the keys, and waits until it accepts
// connections. Each element of config is a line of its pool, such as "redis_auth: word". {dir} is replaced by a directory of the proxy.
func Twemproxy(tb testing.TB, addrs []string, config ...string) *testkit.Server {
	tb.Helper()
	dir := tb.TempDir()
	file := filepath.Join(dir, "nutcracker.yml")
	elsewhere := slices.ContainsFunc(config, func(line string) bool { return strings.HasPrefix(line, "listen:") })
	return testkit.Start(tb, &testkit.Program{
		Name: "nutcracker", Package: "nutcracker", Free: hasBus,
		Args: func(port int) []string {
			lines := []string{"redis: true", "hash: fnv1a_64", "distribution: ketama", "auto_eject_hosts: false"}
			if !elsewhere {
				lines = append(lines, fmt.Sprintf("listen: 127.0.0.1:%d", port))
			}
			lines = append(append(lines, config...), "servers:")
			for _, addr := range addrs {
				lines = append(lines, " - "+addr+":1")
			}
			text := "pool:\n  " + strings.ReplaceAll(strings.Join(lines, "\n  "), "{dir}", dir) + "\n"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				tb.Fatalf("redistest: %v", err)
			}
			return []string{"-c", file, "-o", "/dev/stderr", "-a", "127.0.0.1", "-s", fmt.Sprint(port + 10_000)} // the default log file is in a directory of its package
		},
		Ready: func(s *testkit.Server, _ string) bool {
			port := s.Port()
			if elsewhere {
				port += 10_000 // opened just before the pool
			}
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // it does not wait
			return err == nil && conn.Close() == nil
		},
	})
}
