package redistest_test

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	if got := nodes[4].CLI("ROLE"); !strings.HasPrefix(got, "slave") {
		t.Errorf("the fifth node is a %q, want a replica", got)
	}
	if got := nodes[0].CLI("CLUSTER", "COUNTKEYSINSLOT", "0"); got != "0" {
		t.Errorf("slot 0 holds %s keys", got)
	}
}

func TestSentinels(t *testing.T) {
	t.Parallel()
	if got := redistest.StartWatched(t).Sentinels[0].CLI("SENTINEL", "CKQUORUM", redistest.MasterName); !strings.HasPrefix(got, "OK") {
		t.Errorf("the sentinels have no quorum: %s", got)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	c := redistest.NewCertificates(t, "localhost")
	s := redistest.Start(t, c.Config()...)
	got := s.CLI("--tls", "--sni", "localhost", "--cacert", c.CA, "--cert", c.Cert, "--key", c.Key, "PING")
	if got != "PONG" {
		t.Errorf("PING over TLS was answered %q", got)
	}
}
