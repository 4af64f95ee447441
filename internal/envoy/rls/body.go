package rls

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// Body is a template for the body of rejections: text with the placeholders {{rule}}, {{domain}}, {{limit}}, {{unit}},
// {{remaining}} and {{retry_after}}. A template that begins with a brace is JSON: it is sent as application/json, and
// values are escaped, so that those for text may be used inside its strings, and numbers outside of them too. Nothing that
// an end user sends gets into the body.
type Body struct {
	parts []part
	json  bool
}

// part is a piece of a template: literal text, and the placeholder after it.
type part struct {
	text string
	then placeholder
	bare bool // the placeholder is in JSON, outside quotes
}

// placeholder is what a template has in place of a value.
type placeholder uint8

const (
	nothing              placeholder = iota
	placeholderRule                  // name of the limit that rejects, or the path of its rule
	placeholderDomain                //
	placeholderLimit                 // the number
	placeholderUnit                  // of the number, in words: minute, or 5 minutes
	placeholderRemaining             // hits left; 0 for a rejection
	placeholderRetry                 // seconds until the request would pass, at least 1; none if it never would
)

// placeholders returns how templates spell them.
func placeholders() []string {
	return []string{"", "rule", "domain", "limit", "unit", "remaining", "retry_after"}
}

// rejection has the values of the placeholders.
type rejection struct {
	domain []byte
	status *limiter.Status
	retry  int64
}

// ParseBody compiles a template. The error says what is wrong with it, and what would be right.
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

// checkJSON returns why the template would not yield JSON, or nil.
func (t *Body) checkJSON() error {
	for _, number := range []string{"0", "42"} { // after a 0 no other digit may follow
		var whatever any
		if err := json.Unmarshal(t.sample(number), &whatever); err != nil {
			return fmt.Errorf(`a template that begins with a brace must be JSON, such as {"rule":"{{rule}}","retry_after":{{retry_after}}}, with text values in quotes: %w`, err)
		}
	}
	return nil
}

// sample returns the template filled in with number for its numbers and, for its texts, a text that is not valid JSON
// outside quotes.
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

// append appends raw_body. If it is JSON, it also appends the header that says so, which replaces Envoy's text/plain.
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

// value returns the value of p, as valid UTF-8. Numbers of a limit that is hidden from callers are 0, and its texts empty.
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
		return strconv.FormatUint(uint64(remaining(x.status)), 10)
	case p == placeholderRetry && x.retry == 0: // it never passes
		return ""
	case p == placeholderRetry:
		return strconv.FormatInt(x.retry, 10)
	case limit == nil:
		return ""
	case p == placeholderLimit:
		return strconv.FormatUint(uint64(limit.RequestsPerUnit), 10)
	default:
		return limit.WindowText()
	}
}

// appendEscaped appends s, escaped for the inside of a JSON string.
func appendEscaped(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil || len(quoted) < 2 { // never happens: every string can be marshalled
		return b
	}
	return append(b, quoted[1:len(quoted)-1]...)
}
