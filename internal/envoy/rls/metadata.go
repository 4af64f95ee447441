package rls

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// maxAnswer is the maximum size of an answer in bytes. By default, gRPC clients fail on messages of more than 4 MiB.
const maxAnswer = 4_000_000

// metadataFrame is the part of maxAnswer reserved for the rules' metadata and for everything else except the texts of the request.
const metadataFrame = 1 << 19

// metadataEntries is the maximum number of entries of a request whose answer has metadata. Building them takes a few hundred bytes per
// entry.
const metadataEntries = 16 << 10

// truncated is the field of the metadata that is true if some of them are missing.
const truncated = "truncated"

// appendMetadata appends dynamic_metadata: the request, the metadata of the matching rules that were not exceeded and, with
// DECISION_METADATA, the decision. The metadata are built for each answer and share nothing with the rules. If the answer would be too
// long, long texts of the request are cut. If it still is, because of the rules, or if the request has too many entries, the metadata
// have only the field [truncated].
func (s *Service) appendMetadata(b []byte, r *limiter.Request, v *limiter.Verdict) []byte {
	if entriesIn(r) > metadataEntries {
		return appendStruct(b, onlyTruncated(v.Reservation))
	}
	texts := textsOf(r)
	room := maxAnswer - metadataFrame - len(b)
	if len(v.Groups) > 0 { // groups repeat entries
		room /= 2
	}
	cut := shorten(texts, room)
	all := map[string]*structpb.Value{"domain": structpb.NewStringValue(texts[0])}
	texts = texts[1:]
	if len(v.Groups) > 0 {
		all["quota_groups"] = quotaGroups(r, v, texts)
	}
	list := make([]*structpb.Value, len(r.Descriptors))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		fields := descriptorFields(d, texts[:len(d.Entries)])
		texts = texts[len(d.Entries):]
		if s.config.DecisionMetadata && i < len(v.Statuses) {
			addDecision(fields, &v.Statuses[i])
		}
		list[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
	}
	all["descriptors"] = structpb.NewListValue(&structpb.ListValue{Values: list})
	if s.config.DecisionMetadata {
		all["decided_at"] = structpb.NewStringValue(time.Now().UTC().Format(time.RFC3339Nano))
	}
	if r.Hits != 0 {
		all["hitsAddend"] = structpb.NewNumberValue(float64(r.Hits))
	}
	if rules := rulesMetadata(v); len(rules.GetFields()) > 0 {
		all["metadata"] = structpb.NewStructValue(rules)
	}
	all = withReservation(all, v.Reservation)
	if cut {
		all[truncated] = structpb.NewBoolValue(true)
	}
	before := len(b)
	b = appendStruct(b, &structpb.Struct{Fields: all})
	if len(b) > maxAnswer {
		b = appendStruct(b[:before], onlyTruncated(v.Reservation))
	}
	return b
}

// reservation is the field of the metadata with the ID of the request's reservations. Envoy keeps the metadata of an answer, so its later
// call can use the ID.
const reservation = "reservation"

// withReservation adds the ID of the request's reservations, unless it is empty, to fields, which may be nil.
func withReservation(fields map[string]*structpb.Value, id string) map[string]*structpb.Value {
	if fields == nil {
		fields = map[string]*structpb.Value{}
	}
	if id != "" {
		fields[reservation] = structpb.NewStringValue(id)
	}
	return fields
}

// onlyTruncated returns metadata with only the field [truncated] and the reservation ID.
func onlyTruncated(id string) *structpb.Struct {
	return &structpb.Struct{Fields: withReservation(map[string]*structpb.Value{truncated: structpb.NewBoolValue(true)}, id)}
}

// appendStruct appends m as dynamic_metadata. If m cannot be encoded, it appends nothing.
func appendStruct(b []byte, m *structpb.Struct) []byte {
	before := len(b)
	b, start := open(b, responseMetadata)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil { // keep the verdict without its metadata
		return b[:before]
	}
	return shut(b, start)
}

// entriesIn returns the number of entries of r.
func entriesIn(r *limiter.Request) (n int) {
	for i := range r.Descriptors {
		n += len(r.Descriptors[i].Entries)
	}
	return n
}

// textsOf returns the texts of r as valid UTF-8: the domain, followed by each entry as key=value.
func textsOf(r *limiter.Request) []string {
	all := []string{valid(string(r.Domain))}
	for i := range r.Descriptors {
		for _, e := range r.Descriptors[i].Entries {
			all = append(all, valid(string(e.Key)+"="+string(e.Value)))
		}
	}
	return all
}

// shorten cuts texts if their total size exceeds most bytes. It then cuts each one that exceeds an equal share, ends it with an ellipsis,
// and returns true.
func shorten(texts []string, most int) (cut bool) {
	total := 0
	for _, t := range texts {
		total += len(t)
	}
	if total <= most {
		return false
	}
	for i, t := range texts {
		end := max(0, most) / len(texts)
		if len(t) <= end {
			continue
		}
		for end > 0 && !utf8.RuneStart(t[end]) {
			end--
		}
		texts[i] = t[:end] + "…"
	}
	return true
}

// descriptorFields returns the fields of one descriptor, whose entries have these texts.
func descriptorFields(d *limiter.Descriptor, texts []string) map[string]*structpb.Value {
	entries := make([]*structpb.Value, len(texts))
	for i, t := range texts {
		entries[i] = structpb.NewStringValue(t)
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

// addDecision adds the decision on one descriptor: its rule, the control that decided instead of it, whether a limit is exceeded in shadow
// mode, and times in milliseconds, rounded up.
func addDecision(fields map[string]*structpb.Value, st *limiter.Status) {
	if st.Rule != nil {
		fields["rule"] = structpb.NewStringValue(valid(st.Rule.Path))
		fields["file"] = structpb.NewStringValue(valid(st.Rule.File))
		if st.Rule.Line > 0 {
			fields["line"] = structpb.NewNumberValue(float64(st.Rule.Line))
		}
		if st.Rule.Plan != "" {
			fields["plan"] = structpb.NewStringValue(st.Rule.Plan)
		}
	}
	if st.Control != nil {
		fields["control"] = structpb.NewStringValue(st.Control.String())
	}
	if st.Shadowed() {
		fields["shadowed"] = structpb.NewBoolValue(true)
	}
	if st.RateLimit == nil {
		return
	}
	fields["remaining"] = structpb.NewNumberValue(float64(remaining(st)))
	if !st.Never() {
		fields["retry_after_ms"] = milliseconds(st.Decision.RetryAfter)
	}
	if !st.Endless() {
		fields["reset_after_ms"] = milliseconds(st.Decision.ResetAfter)
	}
	fields["wait_ms"] = milliseconds(st.Decision.Wait)
}

// quotaGroups returns for each group its entries, whether it is over, the exceeded limits and the remaining hits. texts are those of the
// entries of r.
func quotaGroups(r *limiter.Request, v *limiter.Verdict, texts []string) *structpb.Value {
	groups := make([]*structpb.Value, 0, len(v.Groups))
	begin := 0 // index in texts of the first entry of the i-th descriptor
	for i := range r.Descriptors {
		entries := r.Descriptors[i].Entries
		if g := slices.IndexFunc(v.Groups, func(g limiter.QuotaGroup) bool { return g.First == i }); g >= 0 {
			groups = append(groups, quotaGroup(v, g, groupTexts(v.GroupBy, entries, texts[begin:])))
		}
		begin += len(entries)
	}
	return structpb.NewListValue(&structpb.ListValue{Values: groups})
}

// groupTexts returns the texts of the first entry with each key.
func groupTexts(keys []string, entries []descriptors.Entry, texts []string) (list []*structpb.Value) {
	for _, key := range keys {
		if i := slices.IndexFunc(entries, func(e descriptors.Entry) bool { return string(e.Key) == key }); i >= 0 {
			list = append(list, structpb.NewStringValue(texts[i]))
		}
	}
	return list
}

// quotaGroup returns the fields of the g-th group.
func quotaGroup(v *limiter.Verdict, g int, entries []*structpb.Value) *structpb.Value {
	var exceeded []*structpb.Value
	for i := range v.Statuses {
		if st := &v.Statuses[i]; st.Over && st.Quota && (st.Group == g || st.Group == limiter.AnyGroup) {
			exceeded = append(exceeded, structpb.NewStringValue(valid(st.RuleName())))
		}
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"entries":   structpb.NewListValue(&structpb.ListValue{Values: entries}),
		"over":      structpb.NewBoolValue(v.Groups[g].Over),
		"exceeded":  structpb.NewListValue(&structpb.ListValue{Values: exceeded}),
		"remaining": structpb.NewNumberValue(float64(v.Groups[g].Remaining)),
	}})
}

// milliseconds returns d in milliseconds, rounded up.
func milliseconds(d time.Duration) *structpb.Value {
	return structpb.NewNumberValue(float64(ceil(d, time.Millisecond)))
}

// rulesMetadata merges the metadata of the rules in the order of the request. The first value of a key wins, except that maps are merged
// recursively. Overrides, and unlimited or replaced descriptors, have no metadata.
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

// merge copies src into dst. It omits values that a Struct cannot hold; rules with such values fail to load.
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

// overrideText returns o in protobuf's text format, but with stable spacing.
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
