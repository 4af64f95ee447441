package recorded

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// isWatch reports whether a line is output of watch --output json.
func isWatch(line []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return false
	}
	has := func(a, b string) bool { return fields[a] != nil && fields[b] != nil }
	return has("outcome", "caller") || has("lost", "skipped")
}

// watchParser turns decisions into events. The decisions about the descriptors of a request are consecutive, with one time and caller.
type watchParser struct {
	summary  *Summary
	first    *adminv1.Decision // first decision of the incomplete event; nil if there is none
	building *replay.Event     // the incomplete event
}

func (p *watchParser) event(line []byte) (*replay.Event, error) {
	var d adminv1.Decision
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(line, &d); err != nil {
		return nil, fmt.Errorf("the line is not output of watch --output json: %s", strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	if d.GetTime() == nil {
		var missed adminv1.WatchResponse
		if err := protojson.Unmarshal(line, &missed); err != nil {
			return nil, errNoTime
		}
		p.summary.Lost += missed.GetLost() + missed.GetSkipped()
		return p.rest(), nil
	}
	at, err := micros(d.GetTime().AsTime())
	if err != nil {
		return nil, err
	}
	if d.GetIsCut() {
		p.summary.Cut++
	}
	var done *replay.Event
	if !p.continues(&d) {
		done = p.rest()
		p.first = &d
		p.building = &replay.Event{At: at, Request: &limiter.Request{Domain: []byte(d.GetDomain())}, Silent: true, Decision: thenOf(&d)}
	}
	p.add(&d)
	return done, nil
}

// continues reports whether d is about another descriptor of the incomplete event.
func (p *watchParser) continues(d *adminv1.Decision) bool {
	f := p.first
	return f != nil && f.GetTime().AsTime().Equal(d.GetTime().AsTime()) && f.GetCaller() == d.GetCaller() && f.GetDomain() == d.GetDomain() &&
		len(p.building.Request.Descriptors) < limiter.MaxDescriptors
}

// add adds the descriptor of d to the incomplete event.
func (p *watchParser) add(d *adminv1.Decision) {
	out := limiter.Descriptor{Hits: d.GetHits(), HasHits: true, Negative: d.GetIsNegativeHits()}
	for _, e := range d.GetEntries() {
		out.Entries = append(out.Entries, descriptors.Entry{Key: []byte(e.GetKey()), Value: []byte(cmp.Or(string(e.GetRawValue()), e.GetValue()))})
	}
	if d.GetIsOverride() {
		out.Override, out.HasOverride = overrideOf(d.GetLimit())
	}
	p.building.Request.Descriptors = append(p.building.Request.Descriptors, out)
	p.building.Silent = p.building.Silent && out.Negative
}

func (p *watchParser) rest() *replay.Event {
	e := p.building
	p.first, p.building = nil, nil
	return e
}

func thenOf(d *adminv1.Decision) replay.RecordedDecision {
	switch {
	case d.GetOutcome() == adminv1.Outcome_OUTCOME_FAILED:
		return replay.Unknown
	case d.GetOverLimit() && d.GetOutcome() != adminv1.Outcome_OUTCOME_LATE_CHARGE:
		return replay.Rejected
	}
	return replay.Passed
}

// overrideOf parses the limit that a request carried: 10 per minute, or 10 per 5 minutes.
func overrideOf(text string) (o descriptors.Override, ok bool) {
	text, _, _ = strings.Cut(text, ",")
	var unit string
	var number uint64
	defer func() { o.SetNumber(number) }()
	if n, _ := fmt.Sscanf(text, "%d per %d %s", &number, &o.Multiplier, &unit); n != 3 {
		o.Multiplier = 0
		if n, _ = fmt.Sscanf(text, "%d per %s", &number, &unit); n != 2 {
			return o, false
		}
	}
	if o.Multiplier > 0 {
		unit = strings.TrimSuffix(unit, "s")
	}
	o.Unit = descriptors.ParseUnit(unit)
	return o, o.Unit != descriptors.UnitUnknown
}
