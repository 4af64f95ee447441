package settings

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// checkOTLP returns the errors in variables that trace exporters read themselves. The exporters ignore invalid values,
// and print them. The values may be secret, so errors do not contain them.
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

// httpEndpoint also accepts a user and a password, which are not sent. An @ after the host means that characters of the
// password ended the host early, so that part of the password would be resolved as a name.
func httpEndpoint(v string) bool {
	u, err := url.Parse(v)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !strings.Contains(u.RawQuery+u.Fragment, "@")
}

// grpcEndpoint accepts the same values as the exporter: anything that parses as a URL, even host:port. It rejects a user
// and a password in a target other than an HTTP URL, because they would become part of the host.
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
