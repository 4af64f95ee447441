package recorded

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// parseTime parses a time: RFC 3339, also with a blank for the T or without zone, which means UTC; as in the logs of nginx and Apache; or
// seconds, milliseconds, microseconds or nanoseconds since 1970.
func parseTime(text string) (engine.Micros, error) {
	if text != "" && strings.Trim(text, "0123456789.") == "" {
		return sinceEpoch(text)
	}
	leapless := strings.Replace(text, "59:60", "59:59", 1) // package time does not support leap seconds
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", time.DateTime, "2006-01-02T15:04:05Z0700",
		"02/Jan/2006:15:04:05 -0700",
	} { // package time accepts a fraction after the seconds
		if t, err := time.Parse(layout, leapless); err == nil {
			return micros(t)
		}
	}
	return 0, fmt.Errorf("%.40q is not a time: write it as in 2026-11-20T10:00:00.000Z or 20/Nov/2026:10:00:00 +0000, or seconds, ms, µs "+
		"or ns since 1970", text)
}

// sinceEpoch parses seconds, ms, µs or ns since 1970. The size of the number shows the unit for the years from 1973 on.
func sinceEpoch(text string) (engine.Micros, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	f := 0.0
	if err == nil && fraction != "" {
		f, err = strconv.ParseFloat("0."+fraction, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number of seconds, ms, µs or ns since 1970", text)
	}
	unit := int64(time.Second)
	for most := int64(1e11); unit > 1 && n >= most; most *= 1000 {
		unit /= 1000
	}
	perSecond := int64(time.Second) / unit
	return micros(time.Unix(n/perSecond, n%perSecond*unit+int64(math.Round(f*float64(unit)))))
}

// micros converts a time in the years 1970 to 9999, which engines support.
func micros(t time.Time) (engine.Micros, error) {
	if y := t.UTC().Year(); y < 1970 || y > 9999 {
		return 0, fmt.Errorf("the year %d is not between 1970 and 9999", y)
	}
	return engine.Micros(t.UnixMicro()), nil
}
