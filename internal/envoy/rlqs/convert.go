package rlqs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// Bounds of bucket IDs and of clients' metadata.
const (
	maxEntries = 16
	maxID      = 4096 // bytes of all keys and values
	maxName    = 64   // bytes
	maxWeight  = 1000
	maxDomain  = 256 // bytes

	maxReported = 1 << 40 // requests per report, so that no sum overflows
)

// clientKey is the metadata key of a client's optional name.
const clientKey = "x-ratelimitd-client"

// clientName returns the name of a client: the name in its metadata, if that is printable, short and not taken; otherwise a unique name
// with its number.
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

// printable reports whether a name is printable ASCII without a number sign, which separates the number in generated names.
func printable(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || c == '#' })
}

// weight returns the weight of a client from a key of its metadata; 1 if it is absent or invalid.
func weight(md metadata.MD, key string) float64 {
	if said := md.Get(key); len(said) > 0 {
		if n, err := strconv.ParseUint(said[0], 10, 32); err == nil && n >= 1 && n <= maxWeight {
			return float64(n)
		}
	}
	return 1
}

// bucketKey appends an unambiguous encoding of a domain and an ID, or returns an error if the ID is invalid.
func bucketKey(to []byte, domain string, id map[string]string) ([]byte, error) {
	if len(id) == 0 || len(id) > maxEntries {
		return nil, status.Errorf(codes.InvalidArgument, "the bucket ID has %d entries: want 1 to %d", len(id), maxEntries)
	}
	var room [maxEntries]string
	keys, size := room[:0], 0
	for k, v := range id {
		if k == "" {
			return nil, status.Error(codes.InvalidArgument, "the bucket ID has an empty key: use the key of an entry")
		}
		size += len(k) + len(v)
		keys = append(keys, k)
	}
	if size > maxID {
		return nil, status.Errorf(codes.InvalidArgument, "the bucket ID has %d bytes: want at most %d", size, maxID)
	}
	slices.Sort(keys)
	to = strconv.AppendQuote(to, domain)
	for _, k := range keys {
		to = strconv.AppendQuote(strconv.AppendQuote(to, k), id[k])
	}
	return to, nil
}

// encodedID returns a message with a pre-encoded ID, since encoding a map takes as long as encoding the rest of an action. The encoded ID
// is stored as unknown fields, which protobuf appends unchanged. The result excludes other fields of a client's message, which are
// unchecked.
func encodedID(id map[string]string) *rlqspb.BucketId {
	text, err := proto.Marshal(&rlqspb.BucketId{Bucket: id})
	if err != nil {
		panic("rlqs: encoding an id that was decoded: " + err.Error()) //nolint:forbidigo // a decoded ID can be encoded
	}
	encoded := new(rlqspb.BucketId)
	encoded.ProtoReflect().SetUnknown(text)
	return encoded
}

// action returns the message with an assignment for a bucket. It uses only enumerated values and whole seconds: Envoy aborts on others,
// and applies no limit for less than a second.
func action(id *rlqspb.BucketId, a *shares.Assignment) *rlqspb.RateLimitQuotaResponse_BucketAction {
	var one struct { // one allocation, since there is an action for nearly each report
		message  rlqspb.RateLimitQuotaResponse_BucketAction
		choice   rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_
		quota    rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction
		ttl      durationpb.Duration
		strategy typepb.RateLimitStrategy
		kind     typepb.RateLimitStrategy_TokenBucket
		bucket   typepb.TokenBucket
		fill     wrapperspb.UInt32Value
		interval durationpb.Duration
	}
	one.message.BucketId, one.message.BucketAction = id, &one.choice
	one.choice.QuotaAssignmentAction = &one.quota
	one.quota.AssignmentTimeToLive, one.quota.RateLimitStrategy = &one.ttl, &one.strategy
	one.ttl.Seconds = int64(max(a.TTL, 1)) // 0 has no effect
	switch a.Kind {
	case shares.Abandon:
		one.message.BucketAction = &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		}
	case shares.DenyAll:
		one.strategy.Strategy = &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: typepb.RateLimitStrategy_DENY_ALL}
	case shares.AllowAll:
		one.strategy.Strategy = &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: typepb.RateLimitStrategy_ALLOW_ALL}
	case shares.TokenBucket:
		one.strategy.Strategy, one.kind.TokenBucket = &one.kind, &one.bucket
		one.bucket.MaxTokens, one.bucket.TokensPerFill, one.bucket.FillInterval = max(a.MaxTokens, 1), &one.fill, &one.interval
		one.fill.Value, one.interval.Seconds = max(a.TokensPerFill, 1), int64(max(a.FillInterval, 1))
	}
	return &one.message
}
