package console

import (
	"fmt"
	"html/template"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// words are what templates call. Command runs ratelimitd where the server runs.
func words(command string) template.FuncMap {
	return template.FuncMap{
		"command": func(verb, domain string, entries []*adminv1.Entry, block string) string {
			return command + " " + override(verb, domain, entries, block)
		},
		"inPod":   func() bool { return strings.HasPrefix(command, "kubectl") },
		"base":    filepath.Base,
		"lines":   func(entries []*adminv1.Entry) string { return strings.Join(entryTexts(entries), "\n") },
		"percent": func(part, whole uint64) string { return percent(float64(part), float64(whole)) },
		"dict":    dict,
		"changes": changes,
		"units":   func() []string { return []string{"second", "minute", "hour", "day"} },
		"ago":     func(t *timestamppb.Timestamp) string { return ago(t.AsTime(), time.Now()) },
		"at":      at,
		"wait":    func(d *durationpb.Duration) string { return short(d.AsDuration()) },
		"plain":   plain.Text, // so that no text of a request reorders what is around it
		"entries": func(entries []*adminv1.Entry) string { return plain.Text(entriesText(entries)) },
		"look":    look,
		"rule":    func(domain, path string) string { return ruleURL(domain, path, "") },
		"kind":    func(k adminv1.ControlKind) string { return lower(k.String(), "CONTROL_KIND_") },
		"outcome": func(o adminv1.Outcome) string { return lower(o.String(), "OUTCOME_") },
		"tone":    tone,
		"health":  func(h adminv1.Health) string { return lower(h.String(), "HEALTH_") },
		"breaker": func(h adminv1.Breaker) string { return lower(h.String(), "BREAKER_") },
		"onfail":  onFailureText,
		"many":    many,
		"to":      overrideText,
		"reserves": func(t *adminv1.TopResponse) bool {
			return slices.ContainsFunc(t.GetEntries(), func(e *adminv1.TopEntry) bool { return e.Reserved != nil })
		},
		"n":        func(n uint64) string { return count(float64(n)) },
		"reach":    reach,
		"join":     strings.Join,
		"first":    func(all []*adminv1.RulesDifference) []*adminv1.RulesDifference { return all[:min(len(all), 5)] },
		"more":     func(c *adminv1.RulesChange) int { return int(c.GetTotal()) - len(c.GetDifferences()) },
		"care":     func(e adminv1.ChangeEffect) string { return cares()[e].tone },
		"careText": func(e adminv1.ChangeEffect) string { return cares()[e].text },
		"depth":    func(n int) string { return "d" + strconv.Itoa(min(n, 8)) },
	}
}

// dict returns pairs of a name and a value as what a template gets.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("%v is no name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

func lower(name, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", " ")
}

// tone is how an outcome looks: good, bad or plain.
func tone(o adminv1.Outcome) string {
	switch o {
	case adminv1.Outcome_OUTCOME_ADMITTED, adminv1.Outcome_OUTCOME_ALLOWED:
		return "good"
	case adminv1.Outcome_OUTCOME_REJECTED, adminv1.Outcome_OUTCOME_BLOCKED, adminv1.Outcome_OUTCOME_FAILED:
		return "bad"
	case adminv1.Outcome_OUTCOME_SHADOWED:
		return "warn"
	case adminv1.Outcome_OUTCOME_UNSPECIFIED, adminv1.Outcome_OUTCOME_NO_LIMIT, adminv1.Outcome_OUTCOME_UNLIMITED, adminv1.Outcome_OUTCOME_REPLACED,
		adminv1.Outcome_OUTCOME_LATE_CHARGE, adminv1.Outcome_OUTCOME_SKIPPED:
	}
	return "plain"
}

// care describes the effect of a change that deserves attention.
type care struct{ tone, text string }

func cares() map[adminv1.ChangeEffect]care {
	return map[adminv1.ChangeEffect]care{
		adminv1.ChangeEffect_CHANGE_EFFECT_OPENS:  {"bad", "opens a limit"},
		adminv1.ChangeEffect_CHANGE_EFFECT_ANEW:   {"warn", "counts from 0"},
		adminv1.ChangeEffect_CHANGE_EFFECT_RAISES: {"warn", "raises a limit"},
	}
}

// at returns a time as people write it, in UTC as logs have it.
func at(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format("2006-01-02 15:04:05") }

// ago says how far a time is from now.
func ago(t, now time.Time) string {
	if t.After(now) {
		return "in " + short(t.Sub(now))
	}
	return short(now.Sub(t)) + " ago"
}

// short returns a time with two digits or two units.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return strconv.Itoa(int(d/time.Microsecond)) + " µs"
	case d < 10*time.Millisecond:
		return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) + " ms"
	case d < time.Second:
		return strconv.Itoa(int(d/time.Millisecond)) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Round(time.Second)/time.Second)) + " s"
	case d < time.Hour:
		return twoUnits(d.Round(time.Second), time.Minute, "min", time.Second, "s")
	case d < 48*time.Hour:
		return twoUnits(d.Round(time.Minute), time.Hour, "h", time.Minute, "min")
	default:
		return twoUnits(d.Round(time.Hour), 24*time.Hour, "days", time.Hour, "h")
	}
}

func twoUnits(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// count returns a number with at most four digits.
func count(v float64) string {
	for _, u := range []struct {
		from, size float64
		name       string
	}{{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}} {
		if v >= u.from {
			return strconv.FormatFloat(v/u.size, 'f', 1, 64) + u.name
		}
	}
	if v >= 100 || v == float64(int(v)) {
		return strconv.Itoa(int(v + 0.5))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// percent returns a part in percent of the whole.
func percent(part, whole float64) string { return count(min(100, 100*part/whole)) + " %" }

// entryText returns an entry as key=value.
func entryText(e *adminv1.Entry) string {
	if len(e.GetRawValue()) > 0 {
		return e.GetKey() + "=" + strings.ToValidUTF8(string(e.GetRawValue()), "\uFFFD")
	}
	return e.GetKey() + "=" + e.GetValue()
}

func entryTexts(entries []*adminv1.Entry) []string {
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		all = append(all, entryText(e))
	}
	return all
}

func entriesText(entries []*adminv1.Entry) string { return strings.Join(entryTexts(entries), ", ") }

// override returns the command that allows or blocks a descriptor for an hour, with placeholders if it needs quotes. While it is blocked
// the command that allows it lifts the block with this ID.
func override(verb, domain string, entries []*adminv1.Entry, block string) string {
	if verb == "allow" && block != "" {
		return "lift " + block + " --reason WHY"
	}
	about := strings.Join(entryTexts(entries), ",")
	if n := len(entries); n == 0 || strings.Count(about, ",") >= n || !plain.IsWord(domain) || !plain.IsWord(about) || strings.HasPrefix(domain, "-") || strings.HasPrefix(about, "-") {
		domain, about = "DOMAIN", "KEY=VALUE"
	}
	return verb + " " + domain + " " + about + " --for 1h --reason WHY"
}

// hidden is a value that the API hides.
var hidden = regexp.MustCompile(`^#[0-9a-f]{12}$`)

// masked reports whether entries may have values that are hidden, from users to whom some are not shown, so that they lead nowhere.
func masked(entries []*adminv1.Entry) bool {
	return slices.ContainsFunc(entries, func(e *adminv1.Entry) bool { return hidden.MatchString(e.GetValue()) })
}

// descriptorURL returns the address of a page about a descriptor.
func descriptorURL(page, domain string, entries []*adminv1.Entry) string {
	q := url.Values{"domain": {domain}}
	for _, e := range entries {
		q.Add("e", entryText(e))
	}
	return page + "?" + q.Encode()
}

// ruleURL returns the address of the page about a rule. Several may have the same path; place is then which of them.
func ruleURL(domain, path, place string) string {
	q := url.Values{"domain": {domain}, "path": {path}}
	if place != "" {
		q.Set("at", place)
	}
	return Root + "rule?" + q.Encode()
}

// look returns the address of the page about a descriptor; empty if it would be about another one, because some values are hidden, as
// from those who may not change anything, or are not to be written in a line.
func look(change bool, domain string, entries []*adminv1.Entry) string {
	same := func(a, b *adminv1.Entry) bool {
		return a.GetKey() == b.GetKey() && a.GetValue() == b.GetValue() && len(a.GetRawValue()) == 0
	}
	if len(entries) == 0 || !change && masked(entries) || !slices.EqualFunc(entries, parseEntries(entryTexts(entries)), same) {
		return ""
	}
	return descriptorURL(Root+"descriptor", domain, entries)
}

// parseEntries reads entries, one in a line, as key=value.
func parseEntries(lines []string) (all []*adminv1.Entry) {
	for line := range strings.Lines(strings.Join(lines, "\n")) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		all = append(all, &adminv1.Entry{Key: strings.TrimSpace(key), Value: value})
	}
	return all
}

// many says how many there are of something.
func many(n uint32, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(int(n)) + " " + thing + "s"
}

// beginText says when windows of a calendar begin, as rules do.
func beginText(b *adminv1.CalendarBegin) string {
	return engine.Begin{Month: b.GetMonth(), Day: b.GetDay(), Weekday: b.GetWeekday(), Hour: b.GetHour()}.String()
}

// onFailureText says what is answered while the store fails.
func onFailureText(f adminv1.OnFailure) string {
	if f == adminv1.OnFailure_ON_FAILURE_UNSPECIFIED {
		return "default (DEFAULT_ON_FAILURE)"
	}
	return lower(f.String(), "ON_FAILURE_")
}

func overrideText(o *adminv1.Override) string {
	if o == nil {
		return ""
	}
	limit := descriptors.RateLimit{Unit: descriptors.Unit(o.GetUnit()), Multiplier: max(o.GetUnitMultiplier(), 1)} // both are numbered alike
	limit.Limit.Hits = o.Number()
	return limit.String()
}

// reach says which replicas a change applies to.
func reach(r *adminv1.Reach) string {
	switch {
	case r.GetAlone() != "":
		return "Applies to this server only: " + r.GetAlone() + "."
	case r.GetReplicas() == 0:
		return "Applies to all replicas that share the backend; their number is unknown."
	}
	return "Applies to " + many(uint32(r.GetReplicas()), "replica") + "."
}
