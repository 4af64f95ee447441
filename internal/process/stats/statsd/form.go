package statsd

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// form writes samples as lines.
type form struct {
	dog        bool
	tags       []stats.Label // on each sample
	fixed      string        // with dog: these and Config.DogTags, as they are written at the end of a line
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

// append appends the line of a sample: name:value|kind, followed with DogStatsD by the tags.
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

// dogName returns the name of a sample as the mogrifiers, which are given it on one line, change it, and its tags, each
// after a comma.
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

// dogTag returns a tag after a comma, or nothing if it has no name or no value.
func dogTag(name, value string) string {
	if name == "" || value == "" {
		return ""
	}
	return "," + inTag(name) + ":" + inTag(value)
}

// inTag replaces what would end the tag that contains the text.
func inTag(s string) string { return count.Underscores(stats.OneLine(s), ",|#") }

// clean replaces what would end a name too early. Names are clean except for control characters, unless mogrifiers or
// labels add something.
func clean(name string) string { return count.Underscores(stats.OneLine(name), ":|") }

// appendValue appends the value of a gauge. It writes no sign, which would make the value a change of the previous one,
// and nothing that statsd does not accept as a number.
func appendValue(b []byte, v float64) []byte {
	if !(v > 0) || math.IsInf(v, 1) {
		v = 0
	}
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}

// appendRate appends 1/n, rounded down, so that servers that truncate 1/rate to a whole number get n.
func appendRate(b []byte, n uint64) []byte {
	const digits = 15
	one := uint64(math.Pow10(digits))
	rate := one / n
	if 1/(float64(rate)/float64(one)) < float64(n) { // computed as a server would, in floating point
		rate--
	}
	text := strconv.FormatUint(one+rate, 10) // 1 followed by the digits
	return append(append(b, "0."...), strings.TrimRight(text[1:], "0")...)
}
