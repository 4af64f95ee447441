package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestMergeTop: counts of several servers are added. A descriptor that a server does not list may have its unknown
// hits.
func TestMergeTop(t *testing.T) {
	t.Parallel()
	entry := func(user string, hits, hitsError, rejected, rejectedError uint64) *adminv1.TopEntry {
		return &adminv1.TopEntry{
			Domain: "shop", Rule: "shop.user", Entries: []*adminv1.Entry{{Key: "user", Value: user}},
			Hits: hits, HitsError: hitsError, Rejected: rejected, RejectedError: rejectedError,
		}
	}
	answers := func() []*adminv1.TopResponse {
		return []*adminv1.TopResponse{
			{
				Entries: []*adminv1.TopEntry{entry("ann", 9, 1, 0, 0), entry("bob", 5, 0, 5, 0)}, Hits: 20, Rejected: 5, UnknownHits: 3,
				SampledOneIn: 1,
			},
			{
				Entries: []*adminv1.TopEntry{entry("bob", 6, 2, 1, 1), entry("cleo", 4, 0, 4, 0)}, Hits: 11, Rejected: 6, UnknownHits: 2,
				UnknownRejected: 1, SampledOneIn: 4,
			},
			{Hits: 1, UnknownHits: 1},
		}
	}
	want := &adminv1.TopResponse{
		Entries: []*adminv1.TopEntry{
			entry("bob", 11, 3, 6, 1),
			entry("ann", 9, 4, 0, 1),
		}, Hits: 32, Rejected: 11, UnknownHits: 6, UnknownRejected: 1, SampledOneIn: 4,
	}
	if d := cmp.Diff(want, mergeTop(answers(), adminv1.Ranking_RANKING_BUSIEST, 2), protocmp.Transform()); d != "" {
		t.Errorf("busiest (-want +got):\n%s", d)
	}
	want.Entries = []*adminv1.TopEntry{entry("bob", 11, 3, 6, 1), entry("cleo", 4, 4, 4, 0)}
	if d := cmp.Diff(want, mergeTop(answers(), adminv1.Ranking_RANKING_REJECTED, 2), protocmp.Transform()); d != "" {
		t.Errorf("most rejected (-want +got):\n%s", d)
	}
}
