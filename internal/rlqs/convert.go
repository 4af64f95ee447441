package rlqs

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// Bounds of a bucket's id, and of what clients say of themselves.
const (
	maxEntries = 16
	maxID      = 4096 // bytes of all keys and values
	maxName    = 64   // bytes
	maxWeight  = 1000
	maxDomain  = 256 // bytes

	maxReported = 1 << 40 // requests of one report, so that no sum overflows
)

// clientKey is the key of the metadata in which a client may say its name.
const clientKey = "x-ratelimitd-client"

// clientName returns the name of a client: what it says, if it is printable, short and not taken, or a number.
func clientName(md metadata.MD, number uint64, taken func(string) bool) string {
	name := ""
	if said := md.Get(clientKey); len(said) > 0 && len(said[0]) <= maxName && printable(said[0]) {
		name = said[0]
	}
	if name != "" && !taken(name) {
		return name
	}
	return fmt.Sprintf("%s#%d", name, number)
}

// printable reports whether a name is of printable ASCII and has no number sign, which makes other names.
func printable(name string) bool {
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '#' {
			return false
		}
	}
	return true
}

// weight returns what a client says that it weighs, by a key of its metadata; 1 if it says nothing that can be used.
func weight(md metadata.MD, key string) float64 {
	if key == "" {
		return 1
	}
	if said := md.Get(key); len(said) > 0 {
		if n, err := strconv.ParseUint(said[0], 10, 32); err == nil && n >= 1 && n <= maxWeight {
			return float64(n)
		}
	}
	return 1
}

// bucketKey returns an id as one text, in which no two are the same, or an error.
func bucketKey(domain string, id map[string]string) (string, error) {
	if len(id) == 0 || len(id) > maxEntries {
		return "", status.Errorf(codes.InvalidArgument, "the id of a bucket has %d entries: want 1 to %d", len(id), maxEntries)
	}
	size := 0
	var room [256]byte
	key := strconv.AppendQuote(room[:0], domain)
	for _, k := range slices.Sorted(maps.Keys(id)) {
		if k == "" {
			return "", status.Error(codes.InvalidArgument, "the id of a bucket has an empty key: want the key of an entry")
		}
		size += len(k) + len(id[k])
		key = strconv.AppendQuote(strconv.AppendQuote(key, k), id[k])
	}
	if size > maxID {
		return "", status.Errorf(codes.InvalidArgument, "the id of a bucket has %d bytes: want at most %d", size, maxID)
	}
	return string(key), nil
}

// blanket returns the action that allows or denies everything for so many seconds.
func blanket(id *rlqspb.BucketId, rule typepb.RateLimitStrategy_BlanketRule, ttl uint32) *rlqspb.RateLimitQuotaResponse_BucketAction {
	return assign(id, ttl, &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: rule}})
}

func abandon(id *rlqspb.BucketId) *rlqspb.RateLimitQuotaResponse_BucketAction {
	return &rlqspb.RateLimitQuotaResponse_BucketAction{
		BucketId: id,
		BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		},
	}
}

func assign(id *rlqspb.BucketId, ttl uint32, s *typepb.RateLimitStrategy) *rlqspb.RateLimitQuotaResponse_BucketAction {
	return &rlqspb.RateLimitQuotaResponse_BucketAction{
		BucketId: id,
		BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
			QuotaAssignmentAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
				AssignmentTimeToLive: &durationpb.Duration{Seconds: int64(max(ttl, 1))}, // whole seconds; 0 has no effect
				RateLimitStrategy:    s,
			},
		},
	}
}

// action returns the message of an assignment. Only enumerated values and whole seconds are sent: Envoy aborts at other ones, and
// has no limit below a second.
func action(id *rlqspb.BucketId, a *shares.Assignment) *rlqspb.RateLimitQuotaResponse_BucketAction {
	switch a.Kind {
	case shares.Abandon:
		return abandon(id)
	case shares.DenyAll:
		return blanket(id, typepb.RateLimitStrategy_DENY_ALL, a.TTL)
	case shares.TokenBucket:
	}
	var one struct { // one allocation, since there is an action for nearly each report
		strategy typepb.RateLimitStrategy
		kind     typepb.RateLimitStrategy_TokenBucket
		bucket   typepb.TokenBucket
		fill     wrapperspb.UInt32Value
		interval durationpb.Duration
	}
	one.fill.Value, one.interval.Seconds = max(a.TokensPerFill, 1), int64(max(a.FillInterval, 1))
	one.bucket.MaxTokens, one.bucket.TokensPerFill, one.bucket.FillInterval = max(a.MaxTokens, 1), &one.fill, &one.interval
	one.kind.TokenBucket = &one.bucket
	one.strategy.Strategy = &one.kind
	return assign(id, a.TTL, &one.strategy)
}
