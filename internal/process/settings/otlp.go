package settings

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// checkOTLP returns what is wrong with the variables that the exporters of traces read themselves. The exporters ignore
// what they do not understand, and print it. The values may be secret, so the errors do not repeat them.
func checkOTLP(given map[string]string, protocol string) []error {
	endpoint, urls := httpEndpoint, "a URL such as http://collector:4318"
	if strings.EqualFold(protocol, "grpc") {
		endpoint, urls = grpcEndpoint, "a URL such as http://collector:4317, or a gRPC target such as dns:///collector:4317"
	}
	var problems []error
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		for _, check := range []struct {
			name, takes string
			ok          func(string) bool
		}{
			{"ENDPOINT", urls, endpoint},
			{"HEADERS", "headers such as name=value,name2=value2, with URL-encoded values", headers},
			{"TIMEOUT", "a whole number of milliseconds", func(v string) bool { n, err := strconv.Atoi(v); return err == nil && n >= 0 }},
		} {
			if v := strings.TrimSpace(given[prefix+check.name]); v != "" && !check.ok(v) {
				problems = append(problems, fmt.Errorf("%s%s: must be %s", prefix, check.name, check.takes))
			}
		}
	}
	return problems
}

// httpEndpoint accepts a user and a password too, which are not sent. An @ behind the host means that a password has
// characters in it that end the host early, so that its beginning would be looked up.
func httpEndpoint(v string) bool {
	u, err := url.Parse(v)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !strings.Contains(u.RawQuery+u.Fragment, "@")
}

// grpcEndpoint accepts what the exporter accepts: anything that parses as a URL, even if it is just host:port. In a target
// that is no URL of HTTP, a user and a password would be taken for a part of the host.
func grpcEndpoint(v string) bool {
	u, err := url.Parse(v)
	return err == nil && (!strings.Contains(v, "@") || strings.HasPrefix(u.Scheme, "unix") || httpEndpoint(v))
}

func headers(v string) bool {
	for pair := range strings.SplitSeq(v, ",") {
		name, value, found := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !found || name == "" || checkHeader(name) != nil {
			return false
		}
		if _, err := url.PathUnescape(value); err != nil {
			return false
		}
	}
	return true
}
