package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind says which values a variable may have.
type kind uint8

const (
	text kind = iota
	boolean
	integer  // in Go syntax, not negative
	positive // an integer of 1 or more
	seconds  // an integer, not negative, and not too long for any store
	port
	ratio    // a number of 0 or more
	duration // in Go syntax, not negative
	list     // a,b
	names    // a,b, none of them empty
	pairs    // k:v,k2:v2
	address  // host:port
	path     // of a URL
	header   // name of a header
	level
	deployment // of Redis
	socket
	keyFormat
	failure    // a failure policy
	tlsVersion // the oldest one
	interval   // a duration above 0
	protocol   // of statsd
	exporter   // of traces
	assignments
	secretPairs // like pairs, but secret
)

// words returns the values that a variable of this kind accepts, in upper or lower case; nil if there are more than a
// few.
func (k kind) words() []string {
	switch k {
	case level:
		return []string{"panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"}
	case deployment:
		return []string{"single", "sentinel", "cluster"}
	case socket:
		return []string{"tcp", "tcp4", "tcp6", "unix"}
	case keyFormat:
		return []string{"reference"}
	case failure:
		return []string{"error", "allow", "deny", "local"}
	case exporter:
		return []string{"http", "grpc"}
	case protocol:
		return []string{"tcp", "udp"}
	case tlsVersion:
		return []string{"1.2", "1.3"}
	case text, boolean, integer, positive, seconds, port, ratio, duration, interval, list, names, pairs, address, path, header, assignments, secretPairs:
	}
	return nil
}

// takes returns what a variable of this kind accepts, as the end of a sentence.
func (k kind) takes() string {
	switch k {
	case text:
		return "any text"
	case boolean:
		return "true or false"
	case integer:
		return "a whole number of 0 or more"
	case positive:
		return "a whole number of 1 or more"
	case seconds:
		return "a whole number of seconds from 0 to 2147483647"
	case port:
		return "a port number from 0 to 65535"
	case ratio:
		return "a number of 0 or more, such as 0.8"
	case duration:
		return "a duration of 0 or more with its unit, such as 500ms, 10s or 24h, and at most 876000h"
	case list:
		return "a list such as a,b"
	case names:
		return "names separated by commas, such as envoy.edge,spiffe://cluster.local/ns/edge/sa/envoy"
	case pairs, secretPairs:
		return "pairs such as key:value,key2:value2"
	case assignments:
		return "pairs such as key=value,key2=value2"
	case address:
		return "an address such as :9090 or 127.0.0.1:9090"
	case path:
		return "a path such as /metrics"
	case header:
		return "the name of a header, such as Retry-After: letters, digits and dashes"
	case interval:
		return "a duration above 0 with its unit, such as 500ms or 10s, and at most 876000h"
	case level, deployment, socket, keyFormat, failure, tlsVersion, protocol, exporter:
		return "one of " + strings.Join(k.words(), ", ")
	}
	return fmt.Sprintf("kind %d", k)
}

var errOutOfRange = errors.New("out of range")

// check reports whether v is valid for this kind.
func (k kind) check(v string) error {
	switch k {
	case text, list:
		return nil
	case boolean:
		_, err := strconv.ParseBool(v)
		return err
	case integer:
		return between(v, 0, math.MaxInt)
	case positive:
		return between(v, 1, math.MaxInt)
	case seconds:
		return between(v, 0, math.MaxInt32)
	case port:
		_, err := strconv.ParseUint(v, 10, 16)
		return err
	case ratio:
		return checkRatio(v)
	case duration:
		return checkDuration(v, 0)
	case interval:
		return checkDuration(v, 1)
	case names:
		if slices.Contains(strings.Split(strings.ReplaceAll(v, " ", ""), ","), "") {
			return errors.New("an empty name")
		}
		return nil
	case pairs:
		return checkPairs(v)
	case assignments:
		return checkNamed(v, "=")
	case secretPairs:
		return checkNamed(v, ":")
	case address:
		return checkAddress(v)
	case path:
		if !strings.HasPrefix(v, "/") {
			return errors.New("no slash at the start")
		}
		return nil
	case header:
		return checkHeader(v)
	case level, deployment, socket, keyFormat, failure, tlsVersion, protocol, exporter:
		if !slices.Contains(k.words(), strings.ToLower(v)) {
			return errors.New("not one of the words")
		}
		return nil
	}
	return nil
}

func between(v string, least, most int) error {
	n, err := parseInt(v)
	if err == nil && (n < least || n > most) {
		return errOutOfRange
	}
	return err
}

// parseInt reads an integer with Go's prefixes for its base, as the reference does.
func parseInt(v string) (int, error) {
	n, err := strconv.ParseInt(v, 0, strconv.IntSize)
	return int(n), err
}

// forever is the longest duration that is accepted. Twice of it, or something added to it, does not overflow.
const forever = 876_000 * time.Hour

func checkDuration(v string, least time.Duration) error {
	d, err := time.ParseDuration(v)
	if err == nil && (d < least || d > forever) {
		return errOutOfRange
	}
	return err
}

func checkRatio(v string) error {
	f, err := strconv.ParseFloat(v, 32)
	if err == nil && !(f >= 0) { // NaN too
		return errOutOfRange
	}
	return err
}

func checkPairs(v string) error {
	for pair := range strings.SplitSeq(v, ",") {
		if strings.Count(pair, ":") != 1 {
			return fmt.Errorf("%q is not a pair", pair)
		}
	}
	return nil
}

// pairsOf returns the pairs in a value of this kind, which has been checked.
func (k kind) pairsOf(v string) map[string]string {
	separator := ":"
	if k == assignments {
		separator = "="
	}
	all := map[string]string{}
	for pair := range strings.SplitSeq(v, ",") {
		key, value, _ := strings.Cut(pair, separator)
		all[key] = value
	}
	return all
}

// checkHeader accepts what HTTP allows as the name of a header.
func checkHeader(v string) error {
	for _, c := range []byte(v) {
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return fmt.Errorf("%q is in no header's name", c)
		}
	}
	return nil
}

func checkAddress(v string) error {
	_, p, err := net.SplitHostPort(v)
	if err != nil {
		return err
	}
	return port.check(p)
}

// same reports whether two values of this kind mean the same.
func (k kind) same(a, b string) bool {
	if a == b {
		return true
	}
	switch k {
	case boolean:
		x, errX := strconv.ParseBool(a)
		y, errY := strconv.ParseBool(b)
		return errX == nil && errY == nil && x == y
	case integer, positive, seconds:
		x, errX := parseInt(a)
		y, errY := parseInt(b)
		return errX == nil && errY == nil && x == y
	case ratio:
		x, errX := strconv.ParseFloat(a, 32)
		y, errY := strconv.ParseFloat(b, 32)
		return errX == nil && errY == nil && x == y
	case duration, interval:
		x, errX := time.ParseDuration(a)
		y, errY := time.ParseDuration(b)
		return errX == nil && errY == nil && x == y
	case level, deployment, socket, keyFormat, failure, tlsVersion, protocol, exporter:
		return strings.EqualFold(a, b)
	case text, port, list, names, pairs, address, path, header, assignments, secretPairs:
	}
	return false
}
