package descriptors_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// parseName is the inverse of AppendName. The value of a holder is nil.
func parseName(name []byte) (domain []byte, out []descriptors.Entry, ok bool) {
	text := func(less uint64) ([]byte, bool) {
		n, size := binary.Uvarint(name)
		if size <= 0 || n-less > uint64(len(name)-size) {
			if size > 0 && n == 0 && less == 1 {
				name = name[size:]
				return nil, true
			}
			return nil, false
		}
		s := name[size : size+int(n-less)]
		name = name[size+int(n-less):]
		return s, true
	}
	if domain, ok = text(0); !ok {
		return nil, nil, false
	}
	for len(name) > 0 {
		key, ok := text(0)
		if !ok {
			return nil, nil, false
		}
		value, ok := text(1)
		if !ok {
			return nil, nil, false
		}
		out = append(out, descriptors.Entry{Key: key, Value: value})
	}
	return domain, out, true
}

// readName formats a counter's name for people.
func readName(name []byte) string {
	domain, e, ok := parseName(name)
	if !ok {
		return fmt.Sprintf("malformed %q", name)
	}
	words := []string{string(domain)}
	for _, e := range e {
		value := fmt.Sprintf("=%s", e.Value)
		if e.Value == nil {
			value = " held"
		}
		words = append(words, string(e.Key)+value)
	}
	return strings.Join(words, " ")
}

// FuzzCounterKey parses the names of two descriptors. Parsing returns the original descriptors, so no two descriptors share a name.
func FuzzCounterKey(f *testing.F) {
	f.Add("shop", "a", "b_c", "x", "y", uint8(1))
	f.Add("shop", "a_b", "c", "", "", uint8(2))
	f.Add("", "", "", "\x00", "\xff", uint8(2))
	f.Fuzz(func(t *testing.T, domain, k1, v1, k2, v2 string, n uint8) {
		d := &descriptors.Domain{Name: domain}
		want := entries(k1, v1, k2, v2)[:n%3]
		name := descriptors.Match{}.AppendName([]byte("before"), d, want, false)
		if !bytes.HasPrefix(name, []byte("before")) {
			t.Fatalf("%q does not begin with what was there", name)
		}
		gotDomain, got, ok := parseName(name[len("before"):])
		if !ok || string(gotDomain) != domain || len(got) != len(want) {
			t.Fatalf("%q of %q %q reads as %q %q", name, domain, want, gotDomain, got)
		}
		for i := range want {
			if !bytes.Equal(got[i].Key, want[i].Key) || !bytes.Equal(got[i].Value, want[i].Value) || got[i].Value == nil {
				t.Errorf("entry %d: %q, want %q", i, got[i], want[i])
			}
		}
	})
}

// A Secret makes what crypto/hmac does; without one keys are what they were.
func TestSecret(t *testing.T) {
	t.Parallel()
	none := (*descriptors.Secret)(nil)
	for _, key := range []string{"", "key", strings.Repeat("k", 64), strings.Repeat("k", 65)} {
		for _, name := range []string{"", "name", strings.Repeat("n", 1000)} {
			h := hmac.New(sha256.New, []byte(key))
			h.Write([]byte(name))
			s := descriptors.NewSecret([]byte(key))
			if got, want := s.Hash(append(s.Begin(nil), name...)), [16]byte(h.Sum(nil)); got != want {
				t.Errorf("%.10q of %.10q: %x, want %x", name, key, got, want)
			}
			if got, want := none.Hash(append(none.Begin(nil), name...)), descriptors.Hash([]byte(name)); got != want {
				t.Errorf("%.10q without a secret: %x, want %x", name, got, want)
			}
		}
	}
}

func TestNamesDoNotAllocate(t *testing.T) {
	set := mustLoad(t, []byte(`
domain: shop
descriptors:
- {key: files, value: f/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 3}}
- key: user
  detailed_metric: true
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: tenant
  descriptors: [{key: session, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: concurrency, holder: session}}]
`))
	d := set.Domain([]byte("shop"))
	buf, secret := make([]byte, 0, 1<<17), descriptors.NewSecret([]byte("key"))
	for _, e := range [][]descriptors.Entry{
		entries("files", "f/1"), entries("user", strings.Repeat("u", 60<<10)), entries("tenant", "t", "session", "s"), entries("none", "x"),
	} {
		allocs := testing.AllocsPerRun(100, func() {
			m := set.Domain([]byte("shop")).Match(e)
			secret.Hash(m.AppendName(secret.Begin(buf), d, e, false))
			m.AppendMetricKey(buf, d, e)
			m.Holder(e)
			d.AppendOverrideMetricKey(buf, e)
		})
		if allocs != 0 {
			t.Errorf("%.40q: %v allocations, want none", e, allocs)
		}
	}
}

// TestReferenceNames has the examples of envoyproxy/ratelimit's tests, and the cases in which its names differ from the entries of the
// request.
func TestReferenceNames(t *testing.T) {
	t.Parallel()
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "a.yaml", Data: []byte(`
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: path
    value: files/*
    share_threshold: true
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: any
    value: x*
    rate_limit: {unit: day, requests_per_unit: 1}
`)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := set.Domain([]byte("mongo_cps"))
	for _, tt := range []struct {
		entries []descriptors.Entry
		raw     bool
		want    string
	}{
		{entries: []descriptors.Entry{entry("database", "users")}, want: "mongo_cps_database_users_"},
		{entries: []descriptors.Entry{entry("path", "files/a"), entry("user", "u")}, want: "mongo_cps_path_files/*_user_u_"},
		{entries: []descriptors.Entry{entry("path", "files/a"), entry("user", "u")}, raw: true, want: "mongo_cps_path_files/a_user_u_"},
		{entries: []descriptors.Entry{entry("any", "xy")}, want: "mongo_cps_any_xy_"},
		{entries: []descriptors.Entry{entry("nobody", "")}, raw: true, want: "mongo_cps_nobody__"},
	} {
		if got := string(d.Match(tt.entries).AppendReferenceName(nil, d, tt.entries, tt.raw)); got != tt.want {
			t.Errorf("%q, raw %v: %q, want %q", tt.entries, tt.raw, got, tt.want)
		}
	}
}

func entry(key, value string) descriptors.Entry {
	return descriptors.Entry{Key: []byte(key), Value: []byte(value)}
}
