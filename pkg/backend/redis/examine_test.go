package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// TestExamine: what is found of deployments that scripts of the command do not have; each line is the result, the check and the
// beginning of the text, and all others are ok.
func TestExamine(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	servers := []string{redistest.Start(t).Addr(), redistest.Start(t).Addr()}
	user := redistest.Start(t, "user app on >secret ~shop_* +incrby +expire +get")
	cluster := redistest.Cluster(t, 3)
	first, second := redistest.Start(t), redistest.Start(t)
	var lone []string
	for _, s := range []*redistest.Server{first, first, second} {
		lone = append(lone, redistest.Sentinels(t, s, "mine", 1)[0].Addr())
	}
	for _, c := range []struct {
		name   string
		config Config
		checks int
		want   []string
	}{
		{"cluster", Config{Type: Cluster, URL: cluster[0].Addr()}, 3*9 + 1, nil},
		{"cluster_as_one", Config{URL: cluster[0].Addr()}, 10, []string{"warning version Redis", "error hash tags MOVED"}},
		{"cluster_away", Config{Type: Cluster, URL: "127.0.0.1:1"}, 1, []string{"error cluster dial tcp"}},
		{"two_servers_behind_a_proxy", Config{URL: redistest.Twemproxy(t, servers).Addr()}, 11, []string{
			"warning eviction not known", "error hash tags keys with the same part in braces are on different servers",
		}},
		{"two_servers_reference", Config{URL: redistest.Twemproxy(t, servers).Addr(), KeyFormat: ReferenceKeys}, 7, []string{"warning eviction not known"}},
		{"keys_of_domains", Config{URL: user.Addr(), Auth: "app:secret", KeyFormat: ReferenceKeys}, 6, []string{
			"warning eviction not known", "warning round trip not tried, because the user may use the keys of some domains only",
		}},
		{"two_masters", Config{Type: Sentinel, URL: "mine," + strings.Join(lone, ",")}, 3 + 10 + 1, []string{"warning sentinel names " + second.Addr() + ", where others name " + first.Addr()}},
		{"per_second", Config{URL: servers[0], PerSecond: &Config{URL: "127.0.0.1:1"}}, 11, []string{"error connection dial tcp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.config.DialTimeout, c.config.OpTimeout = slow, slow
			b, err := New(c.config)
			if err != nil {
				t.Fatal(err)
			}
			found := b.Examine(t.Context())
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			var lines []string
			for _, f := range found {
				if line := fmt.Sprintf("%s %s %s", f.Result, f.Check, f.Text); f.Result != "ok" {
					lines = append(lines, line)
				}
			}
			if len(found) != c.checks || !slices.EqualFunc(lines, c.want, strings.HasPrefix) {
				t.Errorf("%d findings, want %d; of these\n%s\nare wrong or in unsure, want\n%s", len(found), c.checks, strings.Join(lines, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
