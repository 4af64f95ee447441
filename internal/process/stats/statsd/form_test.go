package statsd

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func mogrifier(t *testing.T, pattern, name string, tags ...stats.Label) Mogrifier {
	t.Helper()
	m, err := NewMogrifier("M", pattern, name, tags)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDogStatsD(t *testing.T) {
	t.Parallel()
	l := listenUDP(t)
	stop := run(t, counted(), t.Output(), Config{
		Network: "udp", Address: l.address, Interval: time.Hour, Dog: true,
		Tags:    []stats.Label{{Name: "zone", Value: "a.b"}, {Name: "env", Value: "x"}},
		DogTags: []stats.Label{{Name: "service", Value: "rl"}, {Name: "version", Value: "1.2.3"}},
		Mogrifiers: []Mogrifier{
			mogrifier(t, `^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)\.(.*)$`, "ratelimit.$4", stats.Label{Name: "domain", Value: "$1"}, stats.Label{Name: "key", Value: "$2/$3"}),
			mogrifier(t, `service`, "never.$0"), // applies only if the first one does not match
			mogrifier(t, `^ratelimit\.localcache\.entryCount$`, "cut:|in\ntwo", stats.Label{Name: "cut", Value: "a,b|c"}),
		},
	})
	tags := "|#service:rl,version:1.2.3,env:x,zone:a_b"
	want := []string{
		"cut__in_two:0.5|g" + tags + ",cut:a_b_c",
		"never.service:1|c" + tags,
		"ratelimit.go.numGC:9|c" + tags,
		"ratelimit.go.numGoroutine:8|g" + tags,
		"ratelimit.localcache.hitCount:0|g" + tags,
		"ratelimit.near_limit:1|c" + tags + ",domain:shop,key:user_u1/path",
		"ratelimit.over_limit:2|c" + tags + ",domain:shop,key:user_u1/path",
		"ratelimit.redis_pool.cx_active:2|g" + tags,
		"ratelimit.shadow_mode:1|c" + tags + ",domain:my.shop,key:ip_10_0_0_1/x_1_c",
		"ratelimit.total_hits:5|c" + tags + ",domain:shop,key:user_u1/path",
		"ratelimit.within_limit:3|c" + tags + ",domain:shop,key:user_u1/path",
		"ratelimit_server.ShouldRateLimit.total_requests:1|c" + tags,
		"ratelimitd.override_ignored_total:4|c" + tags + ",domain:my_domain,reason:invalid",
		"ratelimitd.unlimited_hits.shop.free:7|c" + tags,
	}
	testkit.Eventually(t, "the first flush", func() bool { return len(l.lines()) > len(want) })
	stop()
	got := slices.DeleteFunc(l.lines()[:len(want)+1], func(line string) bool { return isTime(line, "", tags) })
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("lines but for the time (-want +got):\n%s", d)
	}
}

// TestEmptyGroup: an empty group results in an empty tag, so that all series of a name have the same tags.
func TestEmptyGroup(t *testing.T) {
	t.Parallel()
	tag := func(name, value string) stats.Label { return stats.Label{Name: name, Value: value} }
	m := mogrifier(t, `^ratelimit\.service\.rate_limit\.([^.]+)\.(tenant_id)(?:_(.+))?\.([^.]+)$`, "ratelimit.$4",
		tag("domain", "$1"), tag("descriptor_key", "$2"), tag("descriptor_value", "$3"))
	for given, want := range map[string]string{
		"ratelimit.service.rate_limit.shop.tenant_id.total_hits":   ",domain:shop,descriptor_key:tenant_id,descriptor_value:",
		"ratelimit.service.rate_limit.shop.tenant_id_7.total_hits": ",domain:shop,descriptor_key:tenant_id,descriptor_value:7",
	} {
		if _, tags, ok := m.apply(given); tags != want || !ok {
			t.Errorf("%s: the tags are %q, want %q", given, tags, want)
		}
	}
}

func TestMogrifierRejected(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		tags          []stats.Label
		want          string
	}{
		{"", "n", nil, "no PATTERN specified for mogrifier M"},
		{"p", "", nil, "no NAME specified for mogrifier M"},
		{"(", "n", nil, "failed to compile pattern for M: (: error parsing regexp: missing closing ): `(`"},
		{"p", "n", []stats.Label{{Name: "", Value: "v"}}, "no key specified for tag  for mogrifier M"},
		{"p", "n", []stats.Label{{Name: "k"}}, "no value specified for tag k for mogrifier M"},
		{"(p)", "n.$2", nil, "the NAME of mogrifier M: no group for $2: the pattern has 1"},
		{"(p)", "n.$1", []stats.Label{{Name: "k", Value: "$3"}}, "tag k of mogrifier M: no group for $3: the pattern has 1"},
	} {
		if _, err := NewMogrifier("M", tt.pattern, tt.name, tt.tags); err == nil || err.Error() != tt.want {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestRate: servers use 1/rate as the number of calls, and some truncate it.
func TestRate(t *testing.T) {
	t.Parallel()
	check := func(n uint64) {
		text := string(appendRate(nil, n))
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || rate > 1 || uint64(1/rate) != n {
			t.Fatalf("the rate of 1 in %d is %s, which comes to %v", n, text, 1/rate)
		}
	}
	for n := uint64(2); n < 200_000; n++ {
		check(n)
	}
	for n := uint64(200_000); n < 10_000_000; n += 4999 {
		check(n)
	}
}

// TestTimings: a statsd server computes the exact number of calls, and approximate percentiles and means, whether it
// weights samples or not.
func TestTimings(t *testing.T) {
	t.Parallel()
	r := stats.New()
	const calls = 123_457
	for i := range calls {
		r.ObserveCall("M", 0.0001*float64(1+i%1000)) // 0.1 to 100 ms
	}
	r.ObserveCall("M", 7)
	s := New(r, slog.New(slog.DiscardHandler), Config{})
	var values []float64
	n, total := uint64(0), 0.0
	for sample := range s.reader.Read {
		line := string(s.form.append(nil, &sample))
		value, ok := strings.CutPrefix(line, "ratelimit_server.M.response_time:")
		if !ok {
			continue
		}
		value, rest, _ := strings.Cut(value, "|ms")
		ms, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(line)
		}
		weight := uint64(1)
		if rate, ok := strings.CutPrefix(strings.TrimSpace(rest), "|@"); ok {
			f, err := strconv.ParseFloat(rate, 64)
			if err != nil {
				t.Fatal(line)
			}
			weight = uint64(1 / f)
		}
		values = append(values, ms)
		n += weight
		total += ms * float64(weight)
	}
	if n != calls+1 || len(values) > 1000 || len(values) < 900 {
		t.Errorf("%d samples stand for %d calls, want at most 1000 for %d", len(values), n, calls+1)
	}
	near := func(what string, got, want, by float64) {
		if got < want*(1-by) || got > want*(1+by) {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	slices.Sort(values)
	near("the median", values[len(values)/2], 50, 0.06)
	near("the 90th percentile", values[len(values)*90/100], 90, 0.06)
	near("the 99th percentile", values[len(values)*99/100], 99, 0.06)
	near("the longest", values[len(values)-1], 7000, 0.05)
	near("the mean", total/float64(n), 50.05, 0.03)
}

func BenchmarkFlush(b *testing.B) {
	r := stats.New()
	rules := make([]*count.Rule, 10000)
	for i := range rules {
		rules[i] = r.Rule(count.NewKey("shop", "user_"+strconv.Itoa(i)))
	}
	s := New(r, slog.New(slog.DiscardHandler), Config{})
	for _, changed := range []int{0, 100, 10000} {
		b.Run(strconv.Itoa(changed), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, c := range rules[:changed] {
					c.TotalHits.Add(1)
				}
				for sample := range s.reader.Read {
					s.buffer = s.form.append(s.buffer[:0], &sample)
				}
			}
		})
	}
}
