package rls

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

const draftRules = `
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5, name: 'per "user" \ é%'}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: bucket, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 10, algorithm: token_bucket, burst: 20}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 9, calendar: true}}
  - {key: jobs, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: concurrency}}
  - {key: never, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: once, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - key: api
    rate_limits: [{unit: second, requests_per_unit: 8}, {unit: day, requests_per_unit: 4, name: daily}, {unit: second, requests_per_unit: 7, algorithm: token_bucket}]
  - {key: secret, rate_limit: {unit: minute, requests_per_unit: 1, headers: off}}
`

// draftHeaders formats the headers of an answer as name: value.
func draftHeaders(m *ratelimitv3.RateLimitResponse) string {
	var all []string
	for _, h := range m.GetResponseHeadersToAdd() {
		all = append(all, h.GetKey()+": "+h.GetValue())
	}
	return strings.Join(all, "\n")
}

// TestDraftHeaders tests the draft's headers for a request with certain keys.
func TestDraftHeaders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ keys, want string }{
		{"user", `RateLimit-Policy: "per \"user\" \\ %C3%A9%25";q=5;w=60` + "\n" + `RateLimit: "per \"user\" \\ %C3%A9%25";r=4;t=60`},
		{"bucket", `RateLimit-Policy: "shop.bucket";q=10;w=10;ratelimitd-burst=20` + "\n" + `RateLimit: "shop.bucket";r=19;t=1`},
		{"month", `RateLimit-Policy: "shop.month";q=9` + "\n" + `RateLimit: "shop.month";r=8;t=907200`},
		{"jobs", `RateLimit-Policy: "shop.jobs";q=2;qu="concurrent-requests"` + "\n" + `RateLimit: "shop.jobs";r=1;t=3600`},
		{"never", `RateLimit-Policy: "shop.never";q=0;w=1` + "\n" + `RateLimit: "shop.never";r=0;t=1`},
		{"free none", ""},
		{"api", `RateLimit-Policy: "shop.api:second:fixed_window";q=8;w=1, "daily";q=4;w=86400, "shop.api:second:token_bucket";q=7;w=1` + "\n" +
			`RateLimit: "daily";r=3;t=43200`},
		{"user other none other", `RateLimit-Policy: "per \"user\" \\ %C3%A9%25";q=5;w=60, "shop.other";q=3;w=3600` + "\n" +
			`RateLimit: "shop.other";r=1;t=3600, "per \"user\" \\ %C3%A9%25";r=4;t=60`},
		{"secret other", `RateLimit-Policy: "shop.other";q=3;w=3600` + "\n" + `RateLimit: "shop.other";r=2;t=3600`},
		{"secret", ""},
	} {
		t.Run(tt.keys, func(t *testing.T) {
			t.Parallel()
			w := start(t, draftRules, Config{Headers: Headers{Enabled: true, Draft: true}})
			if got := draftHeaders(w.ask(request("shop", strings.Fields(tt.keys)...))); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// TestUntold checks that the numbers of a rule with headers: off appear neither in headers of either format, nor in a body, nor in the
// status, from which a proxy would derive headers.
func TestUntold(t *testing.T) {
	t.Parallel()
	body, err := ParseBody("{{rule}} {{limit}} {{unit}} {{remaining}} {{retry_after}}")
	if err != nil {
		t.Fatal(err)
	}
	for _, draft := range []bool{false, true} {
		w := start(t, draftRules, Config{Headers: Headers{Enabled: true, Draft: draft, RetryAfter: "Retry-After"}, Body: body})
		for _, over := range []bool{false, true} {
			m := w.ask(request("shop", "secret"))
			code := map[bool]ratelimitv3.RateLimitResponse_Code{false: ratelimitv3.RateLimitResponse_OK, true: ratelimitv3.RateLimitResponse_OVER_LIMIT}[over]
			want := &ratelimitv3.RateLimitResponse{OverallCode: code, Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{{Code: code}}}
			if over {
				want.RawBody = []byte("shop.secret 0  0 0")
			}
			if !proto.Equal(m, want) {
				t.Errorf("draft %v: %v, want %v", draft, m, want)
			}
		}
		w.ask(request("shop", "once"))
		m := w.ask(request("shop", "secret", "once"))
		if got := draftHeaders(m); !strings.Contains(got, "Retry-After: 1") || strings.Contains(got, "60") || m.GetStatuses()[1].GetCurrentLimit() == nil {
			t.Errorf("beside another limit: %v", m)
		}
	}
}

// TestDraftIsStructured checks that both headers are short lists of structured fields, for any number of limits with any names.
func TestDraftIsStructured(t *testing.T) {
	t.Parallel()
	s := New(nil, Config{Headers: Headers{Enabled: true, Draft: true}})
	rapid.Check(t, func(t *rapid.T) {
		r, v := drawAnswer(t)
		for i := range v.Statuses {
			if it := v.Statuses[i].RateLimit; it != nil {
				it.Name = rapid.String().Draw(t, "name")
			}
		}
		var m ratelimitv3.RateLimitResponse
		if err := proto.Unmarshal(encoded(s, r, v), &m); err != nil {
			t.Fatal(err)
		}
		for _, h := range m.GetResponseHeadersToAdd() {
			if h.GetKey() == WaitHeader {
				continue
			}
			if n, err := structured(h.GetValue()); err != nil || n < 1 || n > maxPolicies || len(h.GetValue()) > maxPolicyBytes {
				t.Errorf("%s: %d items, %v: %s", h.GetKey(), n, err, h.GetValue())
			}
		}
	})
}

// structured returns the number of items in a list of strings with parameters, parsed according to RFC 9651. Parameters must be integers
// or strings.
func structured(s string) (items int, err error) {
	for {
		if s, err = structuredString(s); err != nil {
			return items, err
		}
		for strings.HasPrefix(s, ";") {
			key, rest, found := strings.Cut(s[1:], "=")
			if !found || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz-") != "" || key == "" {
				return items, fmt.Errorf("a parameter %q", key)
			}
			if s = rest; strings.HasPrefix(s, `"`) {
				if s, err = structuredString(s); err != nil {
					return items, err
				}
				continue
			}
			digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
			if n, err := strconv.ParseInt(s[:digits], 10, 64); err != nil || digits > 15 || key == "w" && n == 0 {
				return items, fmt.Errorf("%s=%s: %w", key, s[:digits], err)
			}
			s = s[digits:]
		}
		items++
		if s == "" {
			return items, nil
		}
		var more bool
		if s, more = strings.CutPrefix(s, ", "); !more {
			return items, fmt.Errorf("after an item: %q", s)
		}
	}
}

// structuredString parses a string and returns the rest.
func structuredString(s string) (rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		return s, fmt.Errorf("no string: %q", s)
	}
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return s[i+1:], nil
		case s[i] < ' ' || s[i] > '~':
			return s, fmt.Errorf("a byte %x in a string", s[i])
		case s[i] == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return s, errors.New("a backslash before something else")
			}
		}
	}
	return s, errors.New("a string without an end")
}
