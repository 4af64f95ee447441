package redistest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// Replica starts a server that replicates master, and waits until it is in sync.
func Replica(tb testing.TB, master *Server, config ...string) *Server {
	tb.Helper()
	s := Start(tb, append([]string{fmt.Sprintf("replicaof 127.0.0.1 %d", master.Port())}, config...)...)
	testkit.Eventually(tb, "a replica is in step", s.InStep)
	return s
}

// Sentinels starts n sentinels that watch master under the given name. They consider it down only after a minute without an answer, so
// that a busy machine does not cause a failover. See [Down].
func Sentinels(tb testing.TB, master *Server, name string, n int, config ...string) []*Server {
	tb.Helper()
	return SentinelsAt(tb, master.Addr(), name, n, config...)
}

// SentinelsAt is like [Sentinels], for a master with a different address.
func SentinelsAt(tb testing.TB, addr, name string, n int, config ...string) []*Server {
	tb.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	all := make([]*Server, n)
	for i := range all {
		all[i] = start(tb, "+monitor master", append([]string{
			fmt.Sprintf("sentinel monitor %s %s %s %d", name, host, port, n/2+1),
			fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, patience.Milliseconds()),
			fmt.Sprintf("sentinel failover-timeout %s 2000", name),
		}, config...), "--sentinel")
	}
	return all
}

// Watched is a master with a replica, watched by three sentinels under the name [MasterName].
type Watched struct {
	Master, Replica *Server
	Sentinels       []*Server
}

// MasterName is the sentinels' name of the master of a [Watched].
const MasterName = "mine"

// StartWatched starts a master, its replica and three sentinels (see [Sentinels]), and waits until all of them know each other.
func StartWatched(tb testing.TB) *Watched {
	tb.Helper()
	w := &Watched{Master: Start(tb)}
	w.Replica = Replica(tb, w.Master)
	w.Sentinels = Sentinels(tb, w.Master, MasterName, 3)
	AwaitSentinels(w.Sentinels, MasterName, 1)
	return w
}

// URL returns the URL of the master: its name and the addresses of the sentinels.
func (w *Watched) URL() string {
	parts := []string{MasterName}
	for _, s := range w.Sentinels {
		parts = append(parts, s.Addr())
	}
	return strings.Join(parts, ",")
}

// Down sets the time without an answer after which sentinels consider a master down.
func Down(all []*Server, name string, after time.Duration) {
	for _, s := range all {
		s.t.Helper()
		s.CLI("SENTINEL", "SET", name, "down-after-milliseconds", fmt.Sprint(after.Milliseconds()))
	}
}

// AwaitSentinels waits until each sentinel of a master knows the others and the given number of replicas.
func AwaitSentinels(all []*Server, name string, replicas int) {
	for _, s := range all {
		s.t.Helper()
		testkit.Eventually(s.t, "the sentinels know each other", func() bool {
			says := strings.Split(s.CLI("SENTINEL", "MASTER", name), "\n")
			return field(says, "num-slaves") == fmt.Sprint(replicas) && field(says, "num-other-sentinels") == fmt.Sprint(len(all)-1)
		})
	}
}

// field returns the line after the line name.
func field(lines []string, name string) string {
	for i := 0; i+1 < len(lines); i++ {
		if lines[i] == name {
			return lines[i+1]
		}
	}
	return ""
}

// Cluster starts a cluster of the given number of masters, each with a replica. A node counts as down only after a minute without an
// answer, so that a busy machine does not cause a failover. See [NodeTimeout]. The result lists the masters, in the order of their slots,
// followed by the replicas.
func Cluster(tb testing.TB, masters int, config ...string) []*Server {
	tb.Helper()
	config = append([]string{
		"cluster-enabled yes", "cluster-replica-validity-factor 0", fmt.Sprintf("cluster-node-timeout %d", patience.Milliseconds()),
	}, config...)
	args := []string{"--cluster", "create"}
	all := make([]*Server, 2*masters)
	for i := range all {
		all[i] = Start(tb, config...)
		args = append(args, all[i].Addr())
	}
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "redis-cli", append(args, "--cluster-replicas", "1", "--cluster-yes")...).CombinedOutput()
	if err != nil {
		tb.Fatalf("redistest: creating a cluster: %v\n%s", err, out)
	}
	for i, s := range all {
		testkit.Eventually(tb, "a cluster is complete", func() bool {
			return strings.Contains(s.CLI("CLUSTER", "INFO"), "cluster_state:ok") &&
				(i < masters || s.InStep()) &&
				strings.Count(s.CLI("CLUSTER", "NODES"), "connected") == len(all)
		})
	}
	return all
}

// NodeTimeout sets the time without an answer after which the nodes of a cluster consider one down.
func NodeTimeout(all []*Server, after time.Duration) {
	for _, s := range all {
		s.t.Helper()
		s.CLI("CONFIG", "SET", "cluster-node-timeout", fmt.Sprint(after.Milliseconds()))
	}
}
