package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
)

type memcachedKey struct{}

// memcachedOfScript is the memcached of a script. It ends with all scripts.
type memcachedOfScript struct {
	tb     testing.TB
	server *memcachedtest.Server
}

func memcachedCommand(ts *testscript.TestScript, _ bool, args []string) {
	m := ts.Value(memcachedKey{}).(*memcachedOfScript)
	if len(args) == 0 || (m.server == nil) != (args[0] == "start") {
		ts.Fatalf("memcached takes start first, and then kill, restart, begin, say or keys")
	}
	switch args[0] {
	case "start":
		m.server = memcachedtest.Start(m.tb, args[1:]...)
		ts.Setenv("MEMCACHED", m.server.Addr())
		ts.Defer(m.server.Kill)
	case "kill":
		m.server.Kill()
	case "restart":
		m.server.Restart()
	case "say":
		_, err := fmt.Fprintln(ts.Stdout(), m.server.Send(strings.Join(args[1:], " ")))
		ts.Check(err)
	case "begin":
		key := strings.TrimSpace(ts.ReadFile("stdout"))
		if got := m.server.Send(fmt.Sprintf("add %s 0 3600 %d\n%s", key, len(args[1]), args[1])); got != "STORED" {
			ts.Fatalf("adding %q: %s", key, got)
		}
	case "keys":
		for key := range m.server.Items() {
			_, err := fmt.Fprintln(ts.Stdout(), key)
			ts.Check(err)
		}
	default:
		ts.Check(errors.New("memcached " + args[0] + ": no such command"))
	}
}
