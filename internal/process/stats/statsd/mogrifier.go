package statsd

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// Mogrifier rewrites the names of metrics that match a pattern, and turns parts of them into tags.
type Mogrifier struct {
	pattern *regexp.Regexp
	name    template
	tags    []tagTemplate
}

type tagTemplate struct {
	name  string
	value template
}

// NewMogrifier returns a mogrifier that messages call key. In the new name, and in the values of the tags, $0 stands
// for what the pattern matched and $1 and so on for its groups. The errors are the reference's.
func NewMogrifier(key, pattern, name string, tags []stats.Label) (Mogrifier, error) {
	if pattern == "" {
		return Mogrifier{}, fmt.Errorf("no PATTERN specified for mogrifier %s", key)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return Mogrifier{}, fmt.Errorf("failed to compile pattern for %s: %s: %w", key, pattern, err)
	}
	if name == "" {
		return Mogrifier{}, fmt.Errorf("no NAME specified for mogrifier %s", key)
	}
	m := Mogrifier{pattern: re}
	if m.name, err = newTemplate(name, re.NumSubexp()); err != nil {
		return Mogrifier{}, fmt.Errorf("the NAME of mogrifier %s: %w", key, err)
	}
	for _, t := range tags {
		if t.Name == "" {
			return Mogrifier{}, fmt.Errorf("no key specified for tag %s for mogrifier %s", t.Name, key)
		}
		if t.Value == "" {
			return Mogrifier{}, fmt.Errorf("no value specified for tag %s for mogrifier %s", t.Name, key)
		}
		value, err := newTemplate(t.Value, re.NumSubexp())
		if err != nil {
			return Mogrifier{}, fmt.Errorf("tag %s of mogrifier %s: %w", t.Name, key, err)
		}
		m.tags = append(m.tags, tagTemplate{t.Name, value})
	}
	return m, nil
}

// apply returns the new name and the tags, each after a comma; ok is false if the pattern does not match.
func (m *Mogrifier) apply(name string) (renamed, tags string, ok bool) {
	groups := m.pattern.FindStringSubmatch(name)
	if groups == nil {
		return "", "", false
	}
	for _, t := range m.tags {
		tags += "," + inTag(t.name) + ":" + inTag(t.value.fill(groups)) // as in the reference, even if its value is empty
	}
	return m.name.fill(groups), tags, true
}

// template is text in which $0, $1 and so on stand for what a pattern matched.
type template string

// variables matches $0, $1 and so on.
var variables = regexp.MustCompile(`\$\d+`)

// newTemplate checks that text refers to no group beyond the number that the pattern has.
func newTemplate(text string, groups int) (template, error) {
	for _, v := range variables.FindAllString(text, -1) {
		if n, err := strconv.Atoi(v[1:]); err != nil || n > groups {
			return "", fmt.Errorf("there is no group for %s: the pattern has %d", v, groups)
		}
	}
	return template(text), nil
}

// fill replaces the variables of t by what was matched.
func (t template) fill(groups []string) string {
	return variables.ReplaceAllStringFunc(string(t), func(v string) string {
		n, _ := strconv.Atoi(v[1:]) // checked by newTemplate
		return groups[n]
	})
}
