package recorded

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// clockFormat says how times are written: in one of these layouts of package time. The zero value stands for the ways that can be
// told apart: RFC 3339, with a blank for the T or without a zone too, which is UTC then; and seconds, milliseconds, microseconds or
// nanoseconds since 1970.
type clockFormat []string

// timePiece is a piece of the format of START_TIME. A fraction belongs to the seconds before it, of which package time takes one too.
var timePiece = regexp.MustCompile(`%[E*1-9]*S(?:[.,]%[E*1-9]*f)?|%.|[^%]+`)

// unixTime is a format of a number since 1970, whose length tells its unit.
var unixTime = regexp.MustCompile(`^%s(?:\.?%[E*1-9]*f)?$`)

// layoutsOf returns the layouts of a piece; none if it is not known.
func layoutsOf(piece string) []string {
	switch {
	case piece[0] != '%':
		other := time.Date(2033, 11, 23, 17, 48, 59, 0, time.UTC)
		if other.Format(piece) != piece { // package time would take it for a part of the time
			return nil
		}
		return []string{piece}
	case strings.Contains(piece, "S"):
		return []string{"5"}
	}
	return map[string][]string{
		"%Y": {"2006"}, "%y": {"06"}, "%m": {"1"}, "%d": {"_2"}, "%e": {"_2"}, "%H": {"15"}, "%M": {"4"},
		"%b": {"Jan"}, "%B": {"January"}, "%a": {"Mon"}, "%A": {"Monday"}, "%%": {"%"},
		"%z": {"Z0700", "Z07:00"}, "%Z": {"UTC", "GMT", "Z"},
	}[piece]
}

// clockOf returns how an operator START_TIME writes times.
func clockOf(o operator) (clockFormat, error) {
	text := strings.NewReplacer("%T", "%H:%M:%S", "%F", "%Y-%m-%d", "%D", "%m/%d/%y", "%R", "%H:%M").Replace(o.arg)
	if text == "" || unixTime.MatchString(text) {
		return nil, nil
	}
	all := clockFormat{""}
	for _, piece := range timePiece.FindAllString(text, -1) {
		var longer clockFormat
		for _, layout := range layoutsOf(piece) {
			for _, before := range all {
				longer = append(longer, before+layout)
			}
		}
		all = longer
	}
	if len(all) == 0 || strings.HasSuffix(strings.ReplaceAll(text, "%%", ""), "%") {
		return nil, fmt.Errorf("%v: of the formats of times %%Y %%m %%d %%e %%H %%M %%S %%S.%%3f %%b %%a %%y %%z %%Z %%T %%F %%D %%R are known, and "+
			"only %%s, %%s%%3f and %%s.%%3f", o)
	}
	return all, nil
}

// parse returns the time that a text says.
func (f clockFormat) parse(text []byte) (engine.Micros, error) {
	if f == nil {
		return parseTime(string(text))
	}
	said := strings.Replace(string(text), "59:60", "59:59", 1) // package time knows no leap seconds
	for _, layout := range f {
		if t, err := time.Parse(layout, said); err == nil {
			return micros(t)
		}
	}
	return 0, fmt.Errorf("%q is not a time of the log's format", text)
}

// parseTime parses a time that is written in one of the ways that can be told apart.
func parseTime(text string) (engine.Micros, error) {
	if text != "" && strings.Trim(text, "0123456789.") == "" {
		return sinceEpoch(text)
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", time.DateTime, "2006-01-02T15:04:05Z0700"} {
		if t, err := time.Parse(layout, text); err == nil { // a fraction may follow the seconds
			return micros(t)
		}
	}
	return 0, fmt.Errorf("%.40q is not a time: want one such as 2026-11-20T10:00:00.000Z, or seconds, ms, µs or ns since 1970", text)
}

// sinceEpoch parses a number of seconds, ms, µs or ns since 1970. Which it is its size tells, for the years from 1973 on.
func sinceEpoch(text string) (engine.Micros, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number of seconds, ms, µs or ns since 1970", text)
	}
	unit := int64(time.Second)
	for most := int64(1e11); unit > 1 && n >= most; most *= 1000 {
		unit /= 1000
	}
	nanos := int64(0)
	if fraction != "" {
		f, err := strconv.ParseFloat("0."+fraction, 64)
		if err != nil {
			return 0, fmt.Errorf("%.40q is not a number of seconds, ms, µs or ns since 1970", text)
		}
		nanos = int64(math.Round(f * float64(unit)))
	}
	perSecond := int64(time.Second) / unit
	return micros(time.Unix(n/perSecond, n%perSecond*unit+nanos))
}

// micros returns a time that engines know: between the years 1970 and 9999.
func micros(t time.Time) (engine.Micros, error) {
	if y := t.UTC().Year(); y < 1970 || y > 9999 {
		return 0, fmt.Errorf("the year %d is not between 1970 and 9999", y)
	}
	return engine.Micros(t.UnixMicro()), nil
}
