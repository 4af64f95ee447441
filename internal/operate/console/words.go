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
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// words returns the functions for templates. command runs ratelimitd on the server's host.
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
		"plain":   plain.Text, // prevents text of a request from reordering its surroundings
		"entries": func(entries []*adminv1.Entry) string { return plain.Text(entriesText(entries)) },
		"look":    look,
		"rule":    func(domain, path string) string { return ruleURL(domain, path, "") },
		"kind":    func(k adminv1.ControlKind) string { return lower(k.String(), "CONTROL_KIND_") },
		"outcome": func(o adminv1.Outcome) string { return lower(o.String(), "OUTCOME_") },
		"tone":    tone,
		"health":  func(h adminv1.Health) string { return lower(h.String(), "HEALTH_") },
		"breaker": func(h adminv1.Breaker) string { return lower(h.String(), "BREAKER_") },
		"onfail":  onFailureText,
		"many":    func(n uint32, thing string) string { return descriptors.CountText(int(n), thing) },
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

// dict returns a map of alternating names and values, as a template's data.
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

// tone returns the style of an outcome: good, bad, or plain.
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

// care describes an effect of a change that deserves attention.
type care struct{ tone, text string }

func cares() map[adminv1.ChangeEffect]care {
	return map[adminv1.ChangeEffect]care{
		adminv1.ChangeEffect_CHANGE_EFFECT_OPENS:  {"bad", "opens a limit"},
		adminv1.ChangeEffect_CHANGE_EFFECT_ANEW:   {"warn", "counts from 0"},
		adminv1.ChangeEffect_CHANGE_EFFECT_RAISES: {"warn", "raises a limit"},
	}
}

// at formats a time in UTC, for people.
func at(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format("2006-01-02 15:04:05") }

// ago describes the distance of a time from now.
func ago(t, now time.Time) string {
	if t.After(now) {
		return "in " + short(t.Sub(now))
	}
	return short(now.Sub(t)) + " ago"
}

// short formats a duration with two digits or two units.
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

// count formats a number with at most four digits.
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

// percent formats part as a percentage of whole.
func percent(part, whole float64) string { return count(min(100, 100*part/whole)) + " %" }

// entryText formats an entry as key=value.
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

// override returns the command that allows or blocks a descriptor for an hour, with placeholders if the descriptor needs quoting. To
// allow a blocked descriptor, the command lifts the block with this ID.
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

// hidden matches a value that the API has masked.
var hidden = regexp.MustCompile(`^#[0-9a-f]{12}$`)

// masked reports whether entries may have masked values. Users who see masked values get no link for them.
func masked(entries []*adminv1.Entry) bool {
	return slices.ContainsFunc(entries, func(e *adminv1.Entry) bool { return hidden.MatchString(e.GetValue()) })
}

// descriptorURL returns the address of a page for a descriptor.
func descriptorURL(page, domain string, entries []*adminv1.Entry) string {
	q := url.Values{"domain": {domain}}
	for _, e := range entries {
		q.Add("e", entryText(e))
	}
	return page + "?" + q.Encode()
}

// ruleURL returns the address of a rule's page. place distinguishes rules with the same path.
func ruleURL(domain, path, place string) string {
	q := url.Values{"domain": {domain}, "path": {path}}
	if place != "" {
		q.Set("at", place)
	}
	return Root + "rule?" + q.Encode()
}

// look returns the address of a descriptor's page. It returns "" if the page would show another descriptor, because values are masked
// for this user or cannot be written on a line.
func look(change bool, domain string, entries []*adminv1.Entry) string {
	same := func(a, b *adminv1.Entry) bool {
		return a.GetKey() == b.GetKey() && a.GetValue() == b.GetValue() && len(a.GetRawValue()) == 0
	}
	if len(entries) == 0 || !change && masked(entries) || !slices.EqualFunc(entries, parseEntries(entryTexts(entries)), same) {
		return ""
	}
	return descriptorURL(Root+"descriptor", domain, entries)
}

// parseEntries parses entries key=value, one a line.
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
	limit := descriptors.RateLimit{Unit: descriptors.Unit(o.GetUnit()), Multiplier: max(o.GetUnitMultiplier(), 1)} // the numbers are the same
	limit.Limit.Hits = o.Number()
	return limit.String()
}

// reach describes the replicas that a change applies to.
func reach(r *adminv1.Reach) string {
	switch {
	case r.GetAlone() != "":
		return "Applies to this server only: " + r.GetAlone() + "."
	case r.GetReplicas() == 0:
		return "Applies to all replicas that share the backend; their number is unknown."
	}
	return "Applies to " + descriptors.CountText(int(r.GetReplicas()), "replica") + "."
}
