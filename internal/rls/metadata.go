package rls

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// appendMetadata appends dynamic_metadata: the request, the metadata of the rules that matched and were not exceeded
// and, with DECISION_METADATA, the decision. All of it is built anew for each answer and shares nothing with the rules.
func (s *Service) appendMetadata(b []byte, r *limiter.Request, v *limiter.Verdict) []byte {
	list := make([]*structpb.Value, len(r.Descriptors))
	for i := range r.Descriptors {
		fields := descriptorFields(&r.Descriptors[i])
		if s.config.DecisionMetadata && i < len(v.Statuses) {
			addDecision(fields, &v.Statuses[i])
		}
		list[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
	}
	all := map[string]*structpb.Value{
		"domain":      text(r.Domain),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: list}),
	}
	if r.Hits != 0 {
		all["hitsAddend"] = structpb.NewNumberValue(float64(r.Hits))
	}
	if rules := rulesMetadata(v); len(rules.GetFields()) > 0 {
		all["metadata"] = structpb.NewStructValue(rules)
	}
	whole := len(b)
	b, start := open(b, responseMetadata)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, &structpb.Struct{Fields: all})
	if err != nil { // a verdict must not be lost because of its metadata
		return b[:whole]
	}
	return shut(b, start)
}

// descriptorFields returns one descriptor of the request.
func descriptorFields(d *limiter.Descriptor) map[string]*structpb.Value {
	entries := make([]*structpb.Value, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = text(e.Key, []byte("="), e.Value)
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if d.HasOverride {
		fields["limit"] = structpb.NewStringValue(overrideText(d.Override))
	}
	if d.HasHits {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.Hits))
	}
	return fields
}

// addDecision adds the decision on one descriptor, and its rule. Times are in milliseconds, rounded up.
func addDecision(fields map[string]*structpb.Value, st *limiter.Status) {
	if st.Rule != nil {
		fields["rule"] = structpb.NewStringValue(valid(st.Rule.Path))
		fields["file"] = structpb.NewStringValue(valid(st.Rule.File))
		if st.Rule.Line > 0 {
			fields["line"] = structpb.NewNumberValue(float64(st.Rule.Line))
		}
	}
	if st.RateLimit == nil {
		return
	}
	fields["remaining"] = structpb.NewNumberValue(float64(remaining(st)))
	fields["retry_after_ms"] = milliseconds(st.Decision.RetryAfter)
	fields["reset_after_ms"] = milliseconds(st.Decision.ResetAfter)
	fields["wait_ms"] = milliseconds(st.Decision.Wait)
}

func milliseconds(d time.Duration) *structpb.Value {
	return structpb.NewNumberValue(float64(ceil(d, time.Millisecond)))
}

// rulesMetadata merges the metadata of the rules in the order of the request: the first one to have a key wins, and
// maps that both have are merged in turn. Overrides have no metadata, and neither have descriptors that are unlimited
// or replaced.
func rulesMetadata(v *limiter.Verdict) *structpb.Struct {
	all := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if !st.Over && !st.Override && st.RateLimit != nil && st.Rule != nil {
			merge(all.Fields, st.Rule.Metadata)
		}
	}
	return all
}

// merge copies src into dst. Values that a Struct cannot hold are left out; loading the rules has already rejected
// them.
func merge(dst map[string]*structpb.Value, src map[string]any) {
	for key, value := range src {
		key = valid(key)
		have, taken := dst[key]
		if !taken {
			if fresh, err := structpb.NewValue(value); err == nil {
				dst[key] = fresh
			}
			continue
		}
		inner, nested := value.(map[string]any)
		if s := have.GetStructValue(); nested && s != nil {
			if s.Fields == nil {
				s.Fields = make(map[string]*structpb.Value, len(inner))
			}
			merge(s.Fields, inner)
		}
	}
}

// overrideText returns o in protobuf's text format, but always with the same spacing.
func overrideText(o descriptors.Override) string {
	var parts []string
	if o.RequestsPerUnit != 0 {
		parts = append(parts, "requests_per_unit:"+strconv.FormatUint(uint64(o.RequestsPerUnit), 10))
	}
	if o.Unit != descriptors.UnitUnknown {
		parts = append(parts, "unit:"+unitName(o.Unit))
	}
	if o.Multiplier != 0 {
		parts = append(parts, "unit_multiplier:{value:"+strconv.FormatUint(uint64(o.Multiplier), 10)+"}")
	}
	return strings.Join(parts, " ")
}

func text(parts ...[]byte) *structpb.Value {
	var s strings.Builder
	for _, p := range parts {
		s.Write(p)
	}
	return structpb.NewStringValue(valid(s.String()))
}
