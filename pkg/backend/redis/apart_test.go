package redis

import (
	"bufio"
	"bytes"
	"hash/crc32"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestF29_KeysApart: a server that is, undetected at first, part of a cluster rejects calls with several keys. Callers must not notice,
// nothing may count twice, and later calls must have one key each.
func TestF29_KeysApart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "cluster-enabled yes")
	if err := s.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a cluster", func() bool { return strings.Contains(s.CLI("CLUSTER", "INFO"), "cluster_state:ok") })
	var sent atomic.Int64
	b := run(t, Config{URL: s.Addr(), OpTimeout: slow, DialTimeout: slow, Observer: remote.Observer{Batch: func(remote.Batch) { sent.Add(1) }}}, true)
	n := b.main.one
	if n.alone.Load() {
		t.Error("a server of a cluster is taken for one that stands alone")
	}
	n.alone.Store(true) // as with a server that does not report it
	for round := range 3 {
		ops := make([]backend.Op, 30)
		for i := range ops {
			ops[i] = backend.Op{Key: keyOf(i), Limits: lasting(100), Take: engine.Take{Cost: 1, Count: 1}}
		}
		b.Apply(t.Context(), ops)
		for i := range ops {
			if ops[i].Err != nil || ops[i].Decision.Left != uint64(100-round) {
				t.Errorf("round %d, op %d: %+v, %v", round, i, ops[i].Decision, ops[i].Err)
			}
		}
	}
	if n.together() {
		t.Error("calls have several keys after one failed")
	}
	s.Restart()
	testkit.Eventually(t, "what one process does not do is not held against the next one", func() bool { return !n.apart.Load() })
}

// byKey listens on loopback, and forwards each command to one of two servers, like a proxy that hides them: a script by its first key,
// other commands to the first one.
func byKey(tb testing.TB, servers ...*redistest.Server) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go pass(c, servers)
		}
	}()
	return l.Addr().String()
}

// pass forwards the commands of one client, and their replies.
func pass(c net.Conn, servers []*redistest.Server) {
	defer c.Close()
	var backs []*bufio.ReadWriter
	for _, s := range servers {
		back, err := net.Dial("tcp", s.Addr())
		if err != nil {
			return
		}
		defer back.Close()
		backs = append(backs, bufio.NewReadWriter(bufio.NewReader(back), bufio.NewWriter(back)))
	}
	in := bufio.NewReader(c)
	for {
		var command bytes.Buffer
		words := value(in, &command)
		if words == nil {
			return
		}
		to := 0
		if name := strings.ToLower(words[0]); strings.HasPrefix(name, "eval") && words[2] != "0" {
			to = int(crc32.ChecksumIEEE([]byte(words[3]))) % len(backs)
		}
		_, _ = backs[to].Write(command.Bytes())
		_ = backs[to].Flush()
		var reply bytes.Buffer
		value(backs[to].Reader, &reply)
		if _, err := c.Write(reply.Bytes()); err != nil {
			return
		}
	}
}

// value copies a value in Redis's protocol, and returns the texts in it, or nil if there is none.
func value(r *bufio.Reader, to *bytes.Buffer) []string {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil
	}
	to.WriteString(line)
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	all := []string{}
	switch {
	case line[0] == '*':
		for range n {
			all = append(all, value(r, to)...)
		}
	case line[0] == '$' && n >= 0:
		text := make([]byte, n+2)
		_, _ = io.ReadFull(r, text)
		to.Write(text)
		all = append(all, string(text[:n]))
	}
	return all
}

// TestF29_Alone checks that only a single Redis gets calls with several keys.
func TestF29_Alone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if b := run(t, Config{URL: s.Addr()}, true); !b.main.one.together() {
		t.Error("a single server gets calls with one key each")
	}
	s.CLI("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-info")
	if b := run(t, Config{URL: s.Addr(), Auth: "app:secret"}, true); b.main.one.together() {
		t.Error("a server that does not say who it is gets calls with several keys")
	}
	proxy := byKey(t, s, redistest.Start(t))
	b := run(t, Config{URL: proxy, OpTimeout: slow, DialTimeout: slow}, true)
	if b.main.one.together() {
		t.Error("two servers behind a proxy get calls with several keys")
	}
	for round := range 3 {
		for i := range 20 {
			if op := one(b, i); op.Err != nil || op.Decision.Left != uint64(1_000_000-round) {
				t.Errorf("round %d, key %d: %+v, %v", round, i, op.Decision, op.Err)
			}
		}
	}
}
