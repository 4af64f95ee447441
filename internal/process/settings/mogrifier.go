package settings

import (
	"errors"
	"fmt"
	"strings"
)

// Mogrifier is the variables of one mogrifier, which rewrites names for DogStatsD. Tags are in the given order.
type Mogrifier struct {
	Key, Pattern, Name string
	Tags               [][2]string // name and value
}

// mogrifiers reads the variables of each mogrifier. Like in the reference, their names contain the mogrifier's name in
// capitals.
func mogrifiers(given map[string]string, names []string) []Mogrifier {
	var all []Mogrifier
	for _, key := range names {
		prefix := mogrifierPrefix(key)
		m := Mogrifier{Key: key, Pattern: given[prefix+"PATTERN"], Name: given[prefix+"NAME"]}
		if tags := given[prefix+"TAGS"]; tags != "" {
			for pair := range strings.SplitSeq(tags, ",") {
				name, value, _ := strings.Cut(pair, ":")
				m.Tags = append(m.Tags, [2]string{name, value})
			}
		}
		all = append(all, m)
	}
	return all
}

func mogrifierPrefix(key string) string { return "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(key) + "_" }

// checkSinks returns the errors in the variables for statistics sinks.
func checkSinks(given, values map[string]string) []error {
	on := func(name string) bool { return boolean.same(given[name], "true") }
	if on("DISABLE_STATS") {
		return nil
	}
	var problems []error
	sinks := 0
	for _, sink := range []string{"USE_DOG_STATSD", "USE_STATSD", "USE_PROMETHEUS"} {
		if on(sink) {
			sinks++
		}
	}
	if sinks > 1 {
		problems = append(problems, errors.New("Error: unable to use more than one stats sink at the same time. Set one of USE_DOG_STATSD, USE_STATSD, USE_PROMETHEUS.")) //nolint:revive,staticcheck // the reference's text
	}
	sent := on("USE_DOG_STATSD") || boolean.same(values["USE_STATSD"], "true")
	if v := given["STATSD_HOST"]; sent && checkHost(v) != nil {
		problems = append(problems, wrong("STATSD_HOST", v, host.takes()))
	}
	if names := values["USE_DOG_STATSD_MOGRIFIERS"]; on("USE_DOG_STATSD") && names != "" {
		for key := range strings.SplitSeq(names, ",") {
			tags := mogrifierPrefix(key) + "TAGS"
			if v := given[tags]; v != "" && pairs.check(v) != nil {
				problems = append(problems, fmt.Errorf("failed to load mogrifier %s: %w", key, wrong(tags, v, pairs.takes())))
			}
		}
	}
	return problems
}
