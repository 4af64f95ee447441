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

// kind is the syntax of a variable's value.
type kind uint8

const (
	text kind = iota
	boolean
	integer  // in Go syntax, not negative
	positive // an integer of 1 or more
	seconds  // an integer, not negative, and not too long for any backend
	port
	ratio    // a number of 0 or more
	duration // in Go syntax, not negative
	list     // a,b
	names    // a,b, none of them empty
	pairs    // k:v,k2:v2
	host     // name or IP address
	address  // host:port
	path     // of a URL
	header   // name of a header
	level
	deployment // of Redis
	socket
	keyFormat
	failure // a failure policy
	headersFormat
	tlsVersion // the minimum version
	interval   // a duration above 0
	protocol   // of statsd
	exporter   // of traces
	assignments
	secretPairs // like pairs, but secret
	store
	source // of rules
	logFormat
)

// acceptance describes the values of a kind.
type acceptance struct {
	takes string                 // description of the values, as the end of a sentence
	words []string               // all values, ignoring case, if there are only a few
	check func(v string) error   // returns an error for an invalid value; nil if all are valid
	same  func(a, b string) bool // whether two values have the same meaning; nil compares texts
}

// accepts returns the acceptance of a kind.
func (k kind) accepts() acceptance {
	return [...]acceptance{
		text:          {takes: "any text"},
		boolean:       parsed("true or false", strconv.ParseBool),
		integer:       parsed("a whole number of 0 or more", between(0, math.MaxInt)),
		positive:      parsed("a whole number of 1 or more", between(1, math.MaxInt)),
		seconds:       parsed("a whole number of seconds from 0 to 2147483647", between(0, math.MaxInt32)),
		port:          {takes: "a port number from 0 to 65535", check: checkPort},
		ratio:         parsed("a number of 0 or more, such as 0.8", parseRatio),
		duration:      parsed("a duration of 0 or more with its unit, such as 500ms, 10s or 24h, and at most 876000h", lasting(0)),
		list:          {takes: "a list such as a,b"},
		names:         {takes: "names separated by commas, such as envoy.edge,spiffe://cluster.local/ns/edge/sa/envoy", check: checkNames},
		pairs:         {takes: "pairs such as key:value,key2:value2", check: checkPairs},
		host:          {takes: "a host name or an IP address, without a user or a password", check: checkHost},
		address:       {takes: "an address such as :9090 or 127.0.0.1:9090", check: checkAddress},
		path:          {takes: "a path such as /metrics", check: checkPath},
		header:        {takes: "the name of a header, such as Retry-After: letters, digits and dashes", check: checkHeader},
		level:         oneOf("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"),
		deployment:    oneOf("single", "sentinel", "cluster"),
		socket:        oneOf("tcp", "tcp4", "tcp6", "unix"),
		keyFormat:     oneOf("reference"),
		failure:       oneOf("error", "allow", "deny", "local"),
		headersFormat: oneOf("reference", "draft"),
		tlsVersion:    oneOf("1.2", "1.3"),
		interval:      parsed("a duration above 0 with its unit, such as 500ms or 10s, and at most 876000h", lasting(1)),
		protocol:      oneOf("tcp", "udp"),
		exporter:      oneOf("http", "grpc"),
		assignments:   {takes: "pairs such as key=value,key2=value2", check: func(v string) error { return checkNamed(v, "=") }},
		secretPairs:   {takes: "pairs such as key:value,key2:value2", check: func(v string) error { return checkNamed(v, ":") }},
		store:         either(BackendTypes()...),
		source:        either("FILE", "GRPC_XDS_SOTW", "GRPC_XDS_DELTA"),
		logFormat:     either("text", "json"),
	}[k]
}

// takes describes the values of this kind, as the end of a sentence.
func (k kind) takes() string { return k.accepts().takes }

// check returns an error if v is invalid for this kind.
func (k kind) check(v string) error {
	if check := k.accepts().check; check != nil {
		return check(v)
	}
	return nil
}

// same reports whether two values of this kind have the same meaning.
func (k kind) same(a, b string) bool {
	same := k.accepts().same
	return a == b || same != nil && same(a, b)
}

// parsed accepts the values that parse accepts.
func parsed[T comparable](takes string, parse func(string) (T, error)) acceptance {
	return acceptance{
		takes: takes,
		check: func(v string) error {
			_, err := parse(v)
			return err
		},
		same: func(a, b string) bool {
			x, errX := parse(a)
			y, errY := parse(b)
			return errX == nil && errY == nil && x == y
		},
	}
}

// oneOf accepts the given words, ignoring case.
func oneOf(words ...string) acceptance { return choice("one of "+strings.Join(words, ", "), words) }

// either is oneOf with another description: a, b or c.
func either(words ...string) acceptance {
	last := len(words) - 1
	return choice(strings.Join(words[:last], ", ")+" or "+words[last], words)
}

// choice accepts words, which takes describes.
func choice(takes string, words []string) acceptance {
	return acceptance{
		takes: takes,
		words: words,
		check: func(v string) error {
			if !slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, v) }) {
				return errors.New("not one of these words")
			}
			return nil
		},
		same: strings.EqualFold,
	}
}

var errOutOfRange = errors.New("out of range")

func between(least, most int) func(string) (int, error) {
	return func(v string) (int, error) {
		n, err := parseInt(v)
		if err == nil && (n < least || n > most) {
			err = errOutOfRange
		}
		return n, err
	}
}

// parseInt parses an integer in any base with Go's prefixes, like the reference.
func parseInt(v string) (int, error) {
	n, err := strconv.ParseInt(v, 0, strconv.IntSize)
	return int(n), err
}

// forever is the maximum duration. Twice this duration does not overflow.
const forever = 876_000 * time.Hour

func lasting(least time.Duration) func(string) (time.Duration, error) {
	return func(v string) (time.Duration, error) {
		d, err := time.ParseDuration(v)
		if err == nil && (d < least || d > forever) {
			err = errOutOfRange
		}
		return d, err
	}
}

func parseRatio(v string) (float64, error) {
	f, err := strconv.ParseFloat(v, 32)
	if err == nil && !(f >= 0) { // also rejects NaN
		err = errOutOfRange
	}
	return f, err
}

func checkPort(v string) error {
	_, err := strconv.ParseUint(v, 10, 16)
	return err
}

func checkNames(v string) error {
	for name := range strings.SplitSeq(v, ",") {
		if strings.TrimSpace(name) == "" {
			return errors.New("an empty name")
		}
	}
	return nil
}

func checkPairs(v string) error {
	for pair := range strings.SplitSeq(v, ",") {
		if strings.Count(pair, ":") != 1 {
			return fmt.Errorf("%q is not a pair", pair)
		}
	}
	return nil
}

// checkNamed requires a name before the first separator of each pair. Its error does not contain the pairs, which may
// be secret.
func checkNamed(v, separator string) error {
	for pair := range strings.SplitSeq(v, ",") {
		if name, _, found := strings.Cut(pair, separator); !found || strings.TrimSpace(name) == "" {
			return errors.New("a pair without a name")
		}
	}
	return nil
}

// pairsOf returns the pairs in a value of this kind, which has been checked, without blanks around names and values except in tags.
func (k kind) pairsOf(v string) map[string]string {
	separator := ":"
	if k == assignments {
		separator = "="
	}
	all := map[string]string{}
	for pair := range strings.SplitSeq(v, ",") {
		key, value, _ := strings.Cut(pair, separator)
		if k != pairs {
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		}
		all[key] = value
	}
	return all
}

// checkHeader accepts the names of headers that HTTP permits.
func checkHeader(v string) error {
	for _, c := range []byte(v) {
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return fmt.Errorf("%q is not allowed in the name of a header", c)
		}
	}
	return nil
}

// checkHost rejects a host with a user or a password, which no name or address can have.
func checkHost(v string) error {
	if withAt(v) {
		return errors.New("it contains an @")
	}
	return nil
}

func checkAddress(v string) error {
	h, p, err := net.SplitHostPort(v)
	if err != nil {
		return err
	}
	return errors.Join(checkHost(h), checkPort(p))
}

func checkPath(v string) error {
	if !strings.HasPrefix(v, "/") {
		return errors.New("no slash at the start")
	}
	return nil
}
