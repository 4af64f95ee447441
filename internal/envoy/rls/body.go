package rls

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// Body is a template for the body of rejections. Its placeholders are {{rule}}, {{domain}}, {{limit}}, {{unit}}, {{remaining}} and
// {{retry_after}}. A template that begins with a brace is JSON and is sent as application/json. Values are escaped, so placeholders for
// text may appear inside strings, and those for numbers also outside. The body never contains data from an end user.
type Body struct {
	parts []part
	json  bool
}

// part is a piece of a template: literal text and the placeholder that follows.
type part struct {
	text string
	then placeholder
	bare bool // the placeholder is in JSON, outside of quotes
}

// placeholder identifies a value in a template.
type placeholder uint8

const (
	nothing              placeholder = iota
	placeholderRule                  // name of the rejecting limit, or the path of its rule
	placeholderDomain                // domain of the request
	placeholderLimit                 // the limit's number
	placeholderUnit                  // the limit's unit, as text: minute, or 5 minutes
	placeholderRemaining             // hits left; 0 for a rejection
	placeholderRetry                 // seconds until the request would pass, at least 1; empty if it never would
)

// placeholders returns the names of all placeholders, indexed by placeholder.
func placeholders() []string {
	return []string{"", "rule", "domain", "limit", "unit", "remaining", "retry_after"}
}

// rejection holds the values of the placeholders.
type rejection struct {
	domain []byte
	status *limiter.Status
	retry  int64
}

// ParseBody compiles a template. Its error describes the mistake and the correction.
func ParseBody(template string) (*Body, error) {
	trimmed := strings.TrimSpace(template)
	t := &Body{json: strings.HasPrefix(trimmed, "{") && !strings.HasPrefix(trimmed, "{{")}
	rest, quotes := template, 0
	for {
		text, after, found := strings.Cut(rest, "{{")
		if !found {
			t.parts = append(t.parts, part{text: text})
			break
		}
		name, behind, closed := strings.Cut(after, "}}")
		if !closed {
			return nil, fmt.Errorf("the field {{%.20s is not closed: write it as {{rule}}", after)
		}
		p := slices.Index(placeholders(), strings.TrimSpace(name))
		if p <= 0 {
			return nil, fmt.Errorf("{{%s}} is not a field: use {{%s}}", name, strings.Join(placeholders()[1:], "}}, {{"))
		}
		quotes += strings.Count(strings.NewReplacer(`\\`, "", `\"`, "").Replace(text), `"`)
		t.parts = append(t.parts, part{text: text, then: placeholder(p), bare: t.json && quotes%2 == 0})
		rest = behind
	}
	if t.json {
		if err := t.checkJSON(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// checkJSON returns an error if the template would not yield valid JSON.
func (t *Body) checkJSON() error {
	for _, number := range []string{"0", "42"} { // no digit may follow a 0
		var whatever any
		if err := json.Unmarshal(t.sample(number), &whatever); err != nil {
			return fmt.Errorf(`a template that begins with a brace must be JSON, such as {"rule":"{{rule}}","retry_after":{{retry_after}}}, with text values in quotes: %w`, err)
		}
	}
	return nil
}

// sample returns the template with number for its numbers and, for its texts, a text that is invalid in JSON outside of quotes.
func (t *Body) sample(number string) []byte {
	var b []byte
	for _, p := range t.parts {
		b = append(b, p.text...)
		switch p.then {
		case placeholderRule, placeholderDomain, placeholderUnit:
			b = append(b, "a text"...)
		case placeholderLimit, placeholderRemaining, placeholderRetry:
			b = append(b, number...)
		case nothing:
		}
	}
	return b
}

// append appends raw_body. For JSON, it also appends a content-type header, which replaces Envoy's text/plain.
func (t *Body) append(b []byte, r *limiter.Request, v *limiter.Verdict) []byte {
	i := v.Rejection()
	if i < 0 {
		return b
	}
	if t.json {
		b = appendText(b, responseHeaders, "content-type", typeJSON)
	}
	x := rejection{domain: r.Domain, status: &v.Statuses[i], retry: retrySeconds(v)}
	b, start := open(b, responseBody)
	for _, p := range t.parts {
		b = append(b, p.text...)
		switch value := x.value(p.then); {
		case p.bare && value == "":
			b = append(b, "null"...)
		case t.json:
			b = appendEscaped(b, value)
		default:
			b = append(b, value...)
		}
	}
	return shut(b, start)
}

// value returns the value of p as valid UTF-8. For a hidden limit, numbers are 0 and the unit is empty.
func (x *rejection) value(p placeholder) string {
	limit, hidden := x.status.RateLimit, x.status.Hidden()
	switch {
	case p == placeholderRule:
		return valid(x.status.RuleName())
	case p == placeholderDomain:
		return valid(string(x.domain))
	case p == nothing, hidden && p == placeholderUnit:
		return ""
	case hidden:
		return "0"
	case p == placeholderRemaining:
		return strconv.FormatUint(remaining(x.status), 10)
	case p == placeholderRetry && x.retry == 0: // the request never passes
		return ""
	case p == placeholderRetry:
		return strconv.FormatInt(x.retry, 10)
	case limit == nil:
		return ""
	case p == placeholderLimit:
		return strconv.FormatUint(limit.Number(), 10)
	default:
		return limit.WindowText()
	}
}

// appendEscaped appends s, escaped for use inside a JSON string.
func appendEscaped(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil || len(quoted) < 2 { // impossible: every string can be marshalled
		return b
	}
	return append(b, quoted[1:len(quoted)-1]...)
}
