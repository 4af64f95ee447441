package descriptors

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// String describes the limit for people, such as "3 per minute, token_bucket, burst 16". It omits defaults.
func (l RateLimit) String() string {
	words := []string{fmt.Sprintf("%d per %s", l.Number(), l.WindowText())}
	switch {
	case l.Unit == Forever:
		words[0] = fmt.Sprintf("%d forever", l.Number())
	case l.Limit.Algorithm.Holds():
		words[0] = fmt.Sprintf("%d at a time, each for up to %s", l.Number(), spanText(l.Limit.Window))
	}
	if l.Limit.Algorithm != engine.FixedWindow {
		words = append(words, l.Limit.Algorithm.String())
	}
	for _, kv := range limitKeys(&l.Limit) {
		words = append(words, kv.String())
	}
	return strings.Join(words, ", ")
}

// InFull describes the limit with its name and the names that it replaces.
func (l RateLimit) InFull() string { return l.String() + l.names() }

// names describes the limit's name and the names that it replaces, as the end of a list; "" if there are none.
func (l RateLimit) names() (text string) {
	if l.Name != "" {
		text = ", called " + plain.Quoted([]byte(l.Name))
	}
	if len(l.Replaces) == 0 {
		return text
	}
	replaced := make([]string, len(l.Replaces))
	for j, name := range l.Replaces {
		replaced[j] = plain.Quoted([]byte(name))
	}
	return text + ", replaces " + strings.Join(replaced, " and ")
}

// WindowText describes the window: minute, or 5 minutes.
func (l RateLimit) WindowText() string {
	unit := strings.ToLower(l.Unit.String())
	if l.Multiplier == 1 {
		return unit
	}
	return fmt.Sprintf("%d %ss", l.Multiplier, unit)
}

// KeyValue is a key of the grammar and its value.
type KeyValue struct{ Key, Value string }

// String describes the key and its value.
func (kv KeyValue) String() string {
	key := strings.ReplaceAll(kv.Key, "_", " ")
	if kv.Value == "true" {
		return key
	}
	return key + " " + kv.Value
}

// limitKeys returns the keys of a limit whose values are not defaults, except number, window and algorithm.
func limitKeys(l *engine.Limit) (out []KeyValue) {
	if l.Window == 0 { // unlimited
		return nil
	}
	for p := range engine.Parameters() {
		if !p.TakenBy(l.Algorithm) || p.Get(l) == p.Usual(l) {
			continue
		}
		kv := KeyValue{p.String(), p.Text(l)}
		if p.Kind() == engine.KindTime {
			kv.Value = spanText(engine.Micros(p.Get(l)))
		}
		out = append(out, kv)
	}
	return out
}

// spanText formats an engine time with [SpanText].
func spanText(m engine.Micros) string { return SpanText(time.Duration(m) * time.Microsecond) }

// CountText returns n things in words.
func CountText(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// daysAndWeeks matches the parts of a span in units that Go lacks.
var daysAndWeeks = regexp.MustCompile(`[0-9.]+[dw]`)

// ParseSpan parses a duration in Go's syntax, with additional units for days of 24 hours and for weeks: 90s, 2h30m, 1.5d, 1w.
func ParseSpan(s string) (time.Duration, error) {
	hours := map[byte]float64{'d': 24, 'w': 7 * 24}
	d, err := time.ParseDuration(daysAndWeeks.ReplaceAllStringFunc(s, func(part string) string {
		last := len(part) - 1
		n, err := strconv.ParseFloat(part[:last], 64)
		if err != nil {
			return part
		}
		return strconv.FormatFloat(n*hours[part[last]], 'f', -1, 64) + "h"
	}))
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: use one such as 90s, 30m, 2h or 1d", s)
	}
	return d, nil
}

// SpanText formats a duration as in rules and in all texts for people: 1m30s, 500ms, and 1h, for which Go has 1h0m0s.
func SpanText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// WaitText formats a remaining time with [SpanText], to the minute above an hour, to the second above a minute, and to a tenth of a
// second above a second. It rounds up, so that no client retries too early.
func WaitText(d time.Duration) string {
	step := time.Millisecond
	switch {
	case d > time.Hour:
		step = time.Minute
	case d > time.Minute:
		step = time.Second
	case d > time.Second:
		step = 100 * time.Millisecond
	}
	if rest := d % step; rest > 0 {
		d += step - rest
	}
	return SpanText(d)
}

// String describes the rule: its limits, and other keys whose values are not defaults.
func (r *Rule) String() string { return r.text(RateLimit.String) }

// text describes the rule. item describes its limits.
func (r *Rule) text(item func(RateLimit) string) string {
	words := []string{r.limitText(item)}
	for _, kv := range r.Keys() {
		words = append(words, kv.String())
	}
	return strings.Join(words, ", ")
}

// LimitText describes the limits of the rule.
func (r *Rule) LimitText() string { return r.limitText(RateLimit.String) }

// LateChargeAdvice says how to have the rule count charges that do not fit.
func (r *Rule) LateChargeAdvice() string {
	if r.RateLimits.Len() > 0 && r.RateLimits.At(0).Limit.Listed {
		return "move the limit from rate_limits to a descriptor of its own, with late_charge: true"
	}
	return "set late_charge: true"
}

// limitText describes the limits of the rule with item.
func (r *Rule) limitText(item func(RateLimit) string) string {
	if r.Unlimited {
		return "unlimited"
	}
	limits := make([]string, r.RateLimits.Len())
	for i, l := range r.RateLimits.All() {
		limits[i] = item(*l)
	}
	return strings.Join(limits, " and ")
}

// Keys returns the keys of the descriptor whose values are not defaults.
func (r *Rule) Keys() (out []KeyValue) {
	add := func(k, value string) { out = append(out, KeyValue{k, value}) }
	if r.Holder != "" {
		add(rulefile.KeyHolder, r.Holder)
	}
	if r.Penalty != nil {
		add(rulefile.KeyPenalty, penaltyText(r.Penalty))
	}
	if r.Reserve != nil {
		add(rulefile.KeyReserve, r.Reserve.text())
	}
	if r.RLQS != nil {
		add(rulefile.KeyRLQS, r.RLQS.text())
	}
	if r.OnFailure != FailDefault {
		add(rulefile.KeyOnFailure, r.OnFailure.String())
	}
	if r.Lease != leaseAuto {
		add(rulefile.KeyLease, leaseText(r.Lease))
	}
	if r.HeadersOff {
		add(rulefile.KeyHeaders, rulefile.HeadersOff)
	}
	if r.Plan != "" {
		add(rulefile.KeyPlanOf, r.PlanOf)
	}
	if r.Shadow {
		add(rulefile.KeyShadowMode, "true")
	}
	if r.Quota {
		add(rulefile.KeyQuotaMode, "true")
	}
	return out
}

// penaltyText describes a penalty.
func penaltyText(p *engine.Penalty) string {
	text := spanText(p.For) + " once " + p.On.String()
	if p.Escalate > usualEscalate {
		text += fmt.Sprintf(", %d times as long each time, up to %s", p.Escalate, spanText(p.Max))
	}
	return text
}

// AppendConfig appends the rule in the format of the reference's /rlconfig, one line per limit. Keys that the reference lacks follow at
// the end of the line.
func (r *Rule) AppendConfig(dst []byte) []byte {
	for _, item := range r.RateLimits.All() {
		begin := len(dst)
		dst = fmt.Appendf(dst, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
			r.Path, item.Unit, item.Number(), r.Shadow, r.Quota)
		if item.Multiplier != 1 {
			dst = fmt.Appendf(dst, ", %s: %d", rulefile.KeyUnitMultiplier, item.Multiplier)
		}
		if a := item.Limit.Algorithm; a != engine.FixedWindow {
			dst = fmt.Appendf(dst, ", %s: %s", rulefile.KeyAlgorithm, a.String())
		}
		for _, kv := range limitKeys(&item.Limit) {
			dst = fmt.Appendf(dst, ", %s: %s", kv.Key, kv.Value)
		}
		for _, kv := range r.Keys() {
			if kv.Key != rulefile.KeyShadowMode && kv.Key != rulefile.KeyQuotaMode {
				dst = fmt.Appendf(dst, ", %s: %s", kv.Key, kv.Value)
			}
		}
		if r.Overlay != "" {
			dst = fmt.Appendf(dst, ", overlay: %s", r.Overlay)
		}
		dst = append(append(dst[:begin], plain.Text(string(dst[begin:]))...), '\n')
	}
	return dst
}
