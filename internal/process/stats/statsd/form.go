package statsd

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// form formats samples as lines.
type form struct {
	dog        bool
	tags       []stats.Label // on each sample
	fixed      string        // with dog: tags and Config.DogTags, formatted for the end of a line
	mogrifiers []Mogrifier
}

func newForm(c *Config) form {
	f := form{dog: c.Dog, tags: slices.Clone(c.Tags), mogrifiers: c.Mogrifiers}
	stats.SortLabels(f.tags)
	if !c.Dog {
		return f
	}
	for _, t := range c.DogTags {
		f.fixed += dogTag(t.Name, t.Value)
	}
	for _, t := range f.tags {
		f.fixed += dogTag(t.Name, stats.TagValue(t.Value))
	}
	return f
}

// append appends a sample as a line: name:value|kind, followed by tags for DogStatsD.
func (f *form) append(b []byte, s *stats.Sample) []byte {
	var name, tags string
	if f.dog {
		name, tags = f.dogName(s)
	} else {
		name = clean(s.TagName(f.tags))
	}
	b = append(append(b, name...), ':')
	switch s.Kind() {
	case stats.Count:
		b = append(strconv.AppendUint(b, s.N, 10), "|c"...)
	case stats.Gauge:
		b = append(appendValue(b, s.Value), "|g"...)
	case stats.Timing:
		b = append(strconv.AppendFloat(b, math.Round(s.Value*1000)/1000, 'f', -1, 64), "|ms"...)
		if s.N > 1 {
			b = appendRate(append(b, "|@"...), s.N)
		}
	}
	if tags != "" {
		b = append(append(b, "|#"...), tags[1:]...)
	}
	return append(b, '\n')
}

// dogName returns the name of a sample after the mogrifiers, and its tags, each after a comma. The mogrifiers receive
// the name on one line.
func (f *form) dogName(s *stats.Sample) (name, tags string) {
	tags = f.fixed
	for _, l := range s.Tags() {
		tags += dogTag(l.Name, stats.TagValue(l.Value))
	}
	name = clean(s.Name())
	for i := range f.mogrifiers {
		if renamed, more, ok := f.mogrifiers[i].apply(name); ok {
			return clean(renamed), tags + more
		}
	}
	return name, tags
}

// dogTag returns a tag after a comma, or "" without a name or value.
func dogTag(name, value string) string {
	if name == "" || value == "" {
		return ""
	}
	return "," + inTag(name) + ":" + inTag(value)
}

// inTag replaces characters that would end a tag.
func inTag(s string) string { return count.Underscores(stats.OneLine(s), ",|#") }

// clean replaces characters that would end a name. Only mogrifiers and labels can add ones other than control
// characters.
func clean(name string) string { return count.Underscores(stats.OneLine(name), ":|") }

// appendValue appends the value of a gauge. It never writes a sign, which would make the value relative to the previous
// one, nor anything that statsd does not parse as a number.
func appendValue(b []byte, v float64) []byte {
	if !(v > 0) || math.IsInf(v, 1) {
		v = 0
	}
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}

// appendRate appends 1/n, rounded down, so that servers that truncate 1/rate get n.
func appendRate(b []byte, n uint64) []byte {
	const digits = 15
	one := uint64(math.Pow10(digits))
	rate := one / n
	if 1/(float64(rate)/float64(one)) < float64(n) { // computed in floating point, as in a server
		rate--
	}
	text := strconv.FormatUint(one+rate, 10) // 1 followed by the digits
	return append(append(b, "0."...), strings.TrimRight(text[1:], "0")...)
}
