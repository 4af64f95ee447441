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
	name    string        // template
	tags    []stats.Label // values are templates
}

// variables matches $0, $1, and so on in templates, which refer to the match and its groups.
var variables = regexp.MustCompile(`\$\d+`)

// NewMogrifier returns the mogrifier key. In name and in the values of tags, $0 refers to the match of pattern, and $1
// and so on to its groups. The errors are the reference's.
func NewMogrifier(key, pattern, name string, tags []stats.Label) (m Mogrifier, err error) {
	if pattern == "" {
		return m, fmt.Errorf("no PATTERN specified for mogrifier %s", key)
	}
	if m.pattern, err = regexp.Compile(pattern); err != nil {
		return m, fmt.Errorf("failed to compile pattern for %s: %s: %w", key, pattern, err)
	}
	if name == "" {
		return m, fmt.Errorf("no NAME specified for mogrifier %s", key)
	}
	m.name, m.tags = name, tags
	if err := m.check(name); err != nil {
		return m, fmt.Errorf("the NAME of mogrifier %s: %w", key, err)
	}
	for _, t := range tags {
		if t.Name == "" {
			return m, fmt.Errorf("no key specified for tag %s for mogrifier %s", t.Name, key)
		}
		if t.Value == "" {
			return m, fmt.Errorf("no value specified for tag %s for mogrifier %s", t.Name, key)
		}
		if err := m.check(t.Value); err != nil {
			return m, fmt.Errorf("tag %s of mogrifier %s: %w", t.Name, key, err)
		}
	}
	return m, nil
}

// check returns an error if a template refers to a missing group.
func (m *Mogrifier) check(template string) error {
	for _, v := range variables.FindAllString(template, -1) {
		if n, err := strconv.Atoi(v[1:]); err != nil || n > m.pattern.NumSubexp() {
			return fmt.Errorf("no group for %s: the pattern has %d", v, m.pattern.NumSubexp())
		}
	}
	return nil
}

// apply returns the new name and the tags, each after a comma; ok is false if the pattern does not match.
func (m *Mogrifier) apply(name string) (renamed, tags string, ok bool) {
	groups := m.pattern.FindStringSubmatch(name)
	if groups == nil {
		return "", "", false
	}
	fill := func(template string) string {
		return variables.ReplaceAllStringFunc(template, func(v string) string {
			n, _ := strconv.Atoi(v[1:]) // validated by NewMogrifier
			return groups[n]
		})
	}
	for _, t := range m.tags {
		tags += "," + inTag(t.Name) + ":" + inTag(fill(t.Value)) // as in the reference, even with an empty value
	}
	return fill(m.name), tags, true
}
