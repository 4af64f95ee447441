package recorded_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/internal/replay/recorded"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// parse parses key=value,key=value;hits=N;negative;limit=N/minute, the part of the commands' syntax that the tests use.
func parse(text string) (d limiter.Descriptor, err error) {
	text, options, _ := strings.Cut(text, ";")
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return d, fmt.Errorf("%q is not of the form key=value", pair)
		}
		d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(key), Value: []byte(value)})
	}
	d.Negative = strings.Contains(options, "negative")
	if n, _ := fmt.Sscanf(options, "hits=%d", &d.Hits); n == 1 {
		d.HasHits = true
	}
	if n, _ := fmt.Sscanf(options, "limit=%d/minute", &d.Override.RequestsPerUnit); n == 1 {
		d.HasOverride, d.Override.Unit = true, descriptors.ParseUnit("minute")
	}
	return d, nil
}

// texts are files with these contents.
type texts []string

func (t *texts) Next() (io.Reader, string, error) {
	if len(*t) == 0 {
		return nil, "", io.EOF
	}
	first := (*t)[0]
	*t = (*t)[1:]
	return strings.NewReader(first), "log", nil
}

// read returns the events of files, one a line, and a summary, or the error.
func read(t *testing.T, c recorded.Config, files ...string) (string, recorded.Summary, error) {
	t.Helper()
	c.Parse = parse
	r := recorded.New((*texts)(&files), c)
	var b strings.Builder
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.String(), r.Summary(), nil
		}
		if err != nil {
			return b.String(), r.Summary(), err
		}
		b.WriteString(eventText(e) + "\n")
	}
}

func eventText(e *replay.Event) string {
	text := time.UnixMicro(int64(e.At)).UTC().Format("02 15:04:05.000000")
	if e.End > 0 {
		text += fmt.Sprintf("+%v", time.Duration(e.End-e.At)*time.Microsecond)
	}
	if e.Silent {
		text += " silent"
	}
	text += map[replay.RecordedDecision]string{replay.Passed: " passed", replay.Rejected: " rejected"}[e.Decision] + requestText(e.Request)
	if e.AtEnd != nil {
		text += " | at end" + requestText(e.AtEnd)
	}
	return text
}

func requestText(r *limiter.Request) string {
	if r == nil {
		return " -"
	}
	text := " " + string(r.Domain)
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		text += " " + d.Text(1000)
		if d.HasHits {
			text += fmt.Sprintf(";hits=%d", d.Hits)
		}
		if d.Negative {
			text += ";negative"
		}
		if d.HasOverride {
			text += fmt.Sprintf(";limit=%d/%dx%v", d.Override.RequestsPerUnit, d.Override.Multiplier, d.Override.Unit)
		}
	}
	return text
}

func template(t *testing.T, text string) *recorded.Mapping {
	t.Helper()
	m, err := recorded.ParseTemplate(text, parse)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLogs(t *testing.T) {
	t.Parallel()
	const line = `[2026-11-20T10:00:00.123Z] "GET /a?b=c HTTP/1.1" 429 RL 0 3 7 - "-" "curl/8 (x) y" "id" "shop.example" "-"`
	for name, tt := range map[string]struct {
		config recorded.Config
		text   string
		want   string
	}{
		"the time of the decision": {
			recorded.Config{Mapping: template(t, "edge user=%user%")},
			`{"time": "2026-11-20T10:00:00.000Z", "duration": 5, "user": "ann", "ratelimit": {"decided_at": "2026-11-20T10:00:00.002003Z"}}
{"time": "2026-11-20T10:00:01.000Z", "duration": 5, "user": "ann", "ratelimit": null}
{"time": "2026-11-20T10:00:02.000Z", "duration": 5, "user": "ann", "ratelimit": {"truncated": true}}`,
			"20 10:00:00.002003+2.997ms edge user=ann\n20 10:00:01.000000+5ms edge user=ann\n20 10:00:02.000000+5ms edge user=ann\n",
		},
		"the time of the decision, in text": {
			recorded.Config{Mapping: template(t, "edge user=%user%"), Format: "%START_TIME% %user% %decided_at%"},
			"2026-11-20T10:00:00.000Z ann 2026-11-20T10:00:01.5Z\n2026-11-20T10:00:02.000Z ann -",
			"20 10:00:01.500000 edge user=ann\n20 10:00:02.000000 edge user=ann\n",
		},
		"Envoy's default format": {
			recorded.Config{Mapping: template(t, "edge path=%path% agent=%user_agent% host=%authority%")},
			line,
			"20 10:00:00.123000+7ms rejected edge path=/a?b=c agent=curl/8 (x) y host=shop.example\n",
		},
		"a format": {
			recorded.Config{Format: `%time% "%REQ(X-USER)%" %%!`, Mapping: template(t, "edge user=%REQ(X-USER)%")},
			"1795773600.250 \"a b\" %!\r\n1795773601.000 \"-\" %!\n",
			"27 10:00:00.250000 edge user=a b\n27 10:00:01.000000 -\n",
		},
		"Istio's default format": {
			recorded.Config{Mapping: template(t, "edge a=%remote_address%,to=%upstream_cluster% path=%path% agent=%user_agent%")},
			`[2026-11-20T10:00:00.123Z] "GET /a HTTP/1.1" 429 RL via_upstream - "-" 0 437 142 141 "-" "curl/8 (x)" "id" "reviews:9080" "10.244.1.15:9080" ` +
				`outbound|9080||reviews.default.svc.cluster.local 10.244.2.19:60236 10.96.81.152:9080 10.244.2.19:55058 - default`,
			"20 10:00:00.123000+142ms rejected edge a=10.244.2.19,to=outbound|9080||reviews.default.svc.cluster.local path=/a agent=curl/8 (x)\n",
		},
		"Envoy Gateway's JSON": {
			recorded.Config{Mapping: template(t, "edge a=%remote_address%,path=%path%,host=%:authority%,agent=%user-agent%,for=%x-forwarded-for%,id=%x-request-id%")},
			`{"start_time":"2026-11-20T10:00:00.929Z","method":"HEAD","x-envoy-origin-path":"/","response_code":"429","response_flags":"RL","duration":"1","x-forwarded-for":"192.0.2.1",` +
				`"user-agent":"curl","x-request-id":"id","` + `:authority":"httpbin.example.com","downstream_remote_address":"192.0.2.1:62217"}`,
			"20 10:00:00.929000+1ms rejected edge a=192.0.2.1,path=/,host=httpbin.example.com,agent=curl,for=192.0.2.1,id=id\n",
		},
		"milliseconds without a point": {
			recorded.Config{Format: `%time% %user%`, Mapping: template(t, "edge user=%user%")},
			"1795773600250 ann",
			"27 10:00:00.250000 edge user=ann\n",
		},
		"a clock of another zone": {
			recorded.Config{Format: `[%time%] %user%`, Mapping: template(t, "edge user=%user%")},
			"[20/Nov/2026:11:00:00 +0100] ann",
			"20 10:00:00.000000 edge user=ann\n",
		},
		"JSON": {
			recorded.Config{Mapping: template(t, "edge a=%remote_address% user=%jwt.sub% m=%method% n=%a.b%%c.d.e% no=%method.x% odd=%arr%")},
			`{"start_time":"2026-11-20T10:00:00Z","method":"GET","duration":1500,"downstream_remote_address":"[2001:db8::1]:443","jwt":{"sub":"a\"b"},"response_flags":"-","a.b":1,` +
				`"c.d":2,"c":{"d.e":true},"arr":[1]}`,
			"20 10:00:00.000000+1.5s passed edge a=2001:db8::1 user=a\"b m=GET n=1true odd=[1]\n",
		},
		"JSON with flags, none of which is a limit's": {
			recorded.Config{Mapping: template(t, "edge m=%method% a=%remote_address%")},
			`{"ts":1795773600,"method":"GET","status":429,"flags":"-","remote_address":"2001:db8::1"}` + "\n" +
				`{"ts":1795773601,"method":"GET","status":429,"flags":"UF,RL","remote_address":"192.0.2.1"}`,
			"27 10:00:00.000000 passed edge m=GET a=2001:db8::1\n27 10:00:01.000000 rejected edge m=GET a=192.0.2.1\n",
		},
		"JSON without flags": {
			recorded.Config{Mapping: template(t, "edge m=%method%")},
			`{"ts":1795773600.5,"method":"GET","status":429}` + "\n" + `{"ts":1795773601,"method":"GET","status":200}`,
			"27 10:00:00.500000 rejected edge m=GET\n27 10:00:01.000000 passed edge m=GET\n",
		},
		"CSV": {
			recorded.Config{},
			"\uFEFFtime,domain,descriptor,descriptor,hits,duration\n1795773600,edge,\"user=a,path=b\",ip=1,3,1s\n1795773600123,edge,user=a,,,\n",
			"27 10:00:00.000000+1s edge user=a,path=b ip=1\n27 10:00:00.123000 edge user=a\n",
		},
		"CSV and a template": {
			recorded.Config{Mapping: template(t, "edge user=%who%")},
			"who,time\nann,2026-11-20 10:00:00.5\n",
			"20 10:00:00.500000 edge user=ann\n",
		},
		"watch": {
			recorded.Config{},
			`{"lost":"2","skipped":"1","decisions":[]}
{"time":"2026-11-20T10:00:00.5Z","caller":"a:1","domain":"d","entries":[{"key":"k","value":"v"}],"outcome":"OUTCOME_REJECTED","overLimit":true,"hits":"2"}
{"time":"2026-11-20T10:00:00.5Z","caller":"a:1","domain":"d","entries":[{"key":"l","value":"w"}],"outcome":"OUTCOME_ADMITTED","overLimit":true,"hits":"0","isOverride":true,"limit":"10 per 5 minutes, token_bucket"}
{"time":"2026-11-20T10:00:00.5Z","caller":"a:2","domain":"d","entries":[{"key":"k","value":"v"}],"isCut":true,"outcome":"OUTCOME_ADMITTED","hits":"1","isNegativeHits":true}
`,
			"20 10:00:00.500000 rejected d k=v;hits=2 l=w;hits=0;limit=10/5xMINUTE\n20 10:00:00.500000 silent passed d k=v;hits=1;negative\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, s, err := read(t, tt.config, tt.text)
			if d := cmp.Diff(tt.want, got); d != "" || err != nil || s.Unread > 0 {
				t.Errorf("%v, %v (-want +got):\n%s", err, s.First, d)
			}
			if name == "watch" && (s.Lost != 3 || s.Cut != 1) {
				t.Errorf("%+v, want 3 lost and 1 cut", s)
			}
		})
	}
}

// TestNamedFormats: lines written by nginx 1.22 and Apache 2.4. A line that is not an HTTP request is skipped, even the first one, and
// hides no later lines.
func TestNamedFormats(t *testing.T) {
	t.Parallel()
	const (
		map1     = "edge ip=%remote_address% user=%user% path=%path%,agent=%user_agent%"
		map2     = "edge user=%user%,path=%path%"
		map3     = map1 + " for=%x_forwarded_for%"
		noise    = "127.0.0.1 - - [27/Nov/2026:12:10:44 +0000] \"\\x16\\x03\\x01\\x02\\x00\\x01\\x00\" 400 157 \"-\" \"-\""
		combined = `127.0.0.1 - ann [27/Nov/2026:12:10:45 +0000] "GET /v1/items?q=a%20b&z=1 HTTP/1.1" 200 1 "http://shop.example/" "curl/7.88.1"
::1 - - [27/Nov/2026:13:10:45 +0100] "GET / HTTP/1.1" 429 169 "-" "Mozilla/5.0 (X11; \x22Linux\x22 x86_64)"
`
		escaped = `127.0.0.1 - - [27/Nov/2026:12:10:46 +0000] "GET /a HTTP/1.1" 404 397 "-" "Mozilla/5.0 (X11; \"Linux\" x86_64)"
`
		common = `127.0.0.1 - frank [10/Oct/2026:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326
127.0.0.1 - - [27/Nov/2026:12:10:46 +0000] "GET /lim HTTP/1.1" 304 -
`
		forwarded = `127.0.0.1 - ann [27/Nov/2026:12:10:45 +0000] "GET / HTTP/1.1" 200 1 "-" "curl/7.88.1" "203.0.113.7, 10.0.0.1"
`
		ofCombined = `27 12:10:45.000000 passed edge ip=127.0.0.1 user=ann path=/v1/items?q=a%20b&z=1,agent=curl/7.88.1
27 12:10:45.000000 rejected edge ip=::1 path=/,agent=Mozilla/5.0 (X11; \x22Linux\x22 x86_64)
`
	)
	for _, tt := range []struct{ format, template, text, want string }{
		{"nginx", map1, combined, ofCombined},
		{"combined", map1, combined, ofCombined},
		{"apache", map1, combined, ofCombined},
		{"apache", "edge agent=%user_agent%", escaped, `27 12:10:46.000000 passed edge agent=Mozilla/5.0 (X11; \"Linux\" x86_64)` + "\n"},
		{"nginx", map3, forwarded, "27 12:10:45.000000 passed edge ip=127.0.0.1 user=ann path=/,agent=curl/7.88.1 for=203.0.113.7, 10.0.0.1\n"},
		{"apache", map2, common, "10 20:55:36.000000 passed edge user=frank,path=/apache_pb.gif\n27 12:10:46.000000 passed -\n"},
		{"common", map2, common, "10 20:55:36.000000 passed edge user=frank,path=/apache_pb.gif\n27 12:10:46.000000 passed -\n"},
	} {
		got, s, err := read(t, recorded.Config{Format: tt.format, Mapping: template(t, tt.template)}, noise+"\n"+tt.text+noise)
		if d := cmp.Diff(tt.want, got); d != "" || err != nil || s.Unread != 2 {
			t.Errorf("%s: %v, %+v (-want +got):\n%s", tt.format, err, s, d)
		}
	}
	_, _, err := read(t, recorded.Config{Format: "ngnix", Mapping: template(t, map1)}, combined)
	if err == nil || !strings.Contains(err.Error(), "or be nginx, apache, combined or common") {
		t.Errorf("ngnix: %v", err)
	}
	_, _, err = read(t, recorded.Config{Format: "common", Mapping: template(t, map3)}, common)
	if err == nil || !strings.Contains(err.Error(), "the field user_agent is not in the format of the log, which has bytes_sent, ident") {
		t.Errorf("a value that the format does not have: %v", err)
	}
}

// TestNoSuchTime: a line with an invalid time is not read with another time.
func TestNoSuchTime(t *testing.T) {
	t.Parallel()
	c := recorded.Config{Format: `[%time%] %user%`, Mapping: template(t, "edge user=%user%")}
	for text, want := range map[string]bool{
		"2028-02-29 23:59:60": true, "2026-02-29 10:00:00": false, "2026-13-01 10:00:00": false, "2026-00-10 10:00:00": false,
		"2026-11-00 10:00:00": false, "2026-11-20 24:00:00": false, "2026-11-20 10:60:00": false, "2026-11-20 10:00:61": false,
	} {
		if got, s, err := read(t, c, "["+text+"] ann"); err != nil || (got != "") != want || (s.Unread == 0) != want {
			t.Errorf("%s: %q, %+v, %v", text, got, s, err)
		}
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2026-11-20T10:00:00Z":           "20 10:00:00.000000",
		"2026-11-20T10:00:00.123456789Z": "20 10:00:00.123456",
		"2026-11-20T11:00:00+01:00":      "20 10:00:00.000000",
		"2026-11-20T11:00:00.5+0100":     "20 10:00:00.500000",
		"2026-11-20 10:00:00":            "20 10:00:00.000000",
		"1795773600":                     "27 10:00:00.000000",
		"1795773600.25":                  "27 10:00:00.250000",
		"1795773600250":                  "27 10:00:00.250000",
		"1795773600250000":               "27 10:00:00.250000",
		"1795773600250000999":            "27 10:00:00.250000",
		"yesterday":                      "", "99999999999999999999": "", "0001-01-01T00:00:00Z": "", "1.2.3": "", "": "",
	} {
		got, s, err := read(t, recorded.Config{}, "time,domain,descriptor\n"+text+",d,a=b\n")
		if err != nil {
			t.Fatal(err)
		}
		if want != "" {
			want += " d a=b\n"
		}
		if got != want || (want == "") != (s.Unread == 1) {
			t.Errorf("%q: %q %v, want %q", text, got, s.First, want)
		}
	}
}

// TestUnread: unreadable lines are counted, the first ones with file and line, and later lines are read.
func TestUnread(t *testing.T) {
	t.Parallel()
	text := "time,domain,descriptor\n\nnever,d,a=b\n1,d\n1795773600,d,a\n\"1795773600,d\n" + strings.Repeat("x", 3<<20) + "\n0x1,d,a=b\n,d,a=b\n1795773600,d,a=b\n"
	got, s, err := read(t, recorded.Config{}, text, "")
	want := []string{
		"log:3: \"never\" is not a time: write it as in 2026-11-20T10:00:00.000Z or 20/Nov/2026:10:00:00 +0000, or seconds, ms, µs or ns since 1970",
		"log:4: the line does not have as many cells as the heading",
		`log:5: "a" is not of the form key=value`,
		`log:6: the line is not CSV: extraneous or missing " in quoted-field`,
		"log:7: the line is longer than 1048576 bytes",
	}
	if d := cmp.Diff(want, s.First); d != "" || err != nil || s.Unread != 7 || s.Lines != 8 || got != "27 10:00:00.000000 d a=b\n" {
		t.Errorf("%q, %+v, %v (-want +got):\n%s", got, s, err, d)
	}
}

// TestOrder: events of several files, such as of several Envoys or days, are in order of their times, whatever the order of files.
func TestOrder(t *testing.T) {
	t.Parallel()
	const head = "time,domain,descriptor\n"
	got, _, err := read(t, recorded.Config{}, head+"1795773602,d,a=3\n1795773604,d,a=5\n", head+"1795773600,d,a=1\n1795773603,d,a=4\n", "", head+"1795773601,d,a=2\n")
	want := "27 10:00:00.000000 d a=1\n27 10:00:01.000000 d a=2\n27 10:00:02.000000 d a=3\n27 10:00:03.000000 d a=4\n27 10:00:04.000000 d a=5\n"
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

// TestStrangers: output of a server before its access log, as in kubectl logs, does not determine the format.
func TestStrangers(t *testing.T) {
	t.Parallel()
	text := "2026-11-20T09:59:59Z info Envoy proxy is ready\n{\"level\":\n" + `{"start_time":"2026-11-20T10:00:00Z","path":"/x"}` + "\nterminating\n"
	got, s, err := read(t, recorded.Config{Mapping: template(t, "d p=%path%")}, text)
	if got != "20 10:00:00.000000 d p=/x\n" || err != nil || s.Unread != 3 || s.Lines != 4 {
		t.Errorf("%q, %+v, %v", got, s, err)
	}
	if _, _, err := read(t, recorded.Config{}, text); err == nil || !strings.Contains(err.Error(), "--map") {
		t.Errorf("%v, want that --map is missing", err)
	}
}

// TestLongLines: lines up to the limit are read completely.
func TestLongLines(t *testing.T) {
	t.Parallel()
	for _, n := range []int{64<<10 - 40, 64 << 10, 200 << 10, 1<<20 - 100} {
		got, s, err := read(t, recorded.Config{}, "time,domain,descriptor\n1795773600,"+strings.Repeat("d", n)+",a=b\n1795773601,d,a=c")
		if len(got) != n+len("27 10:00:00.000000  a=b\n27 10:00:01.000000 d a=c\n") || s.Unread > 0 || err != nil {
			t.Errorf("%d bytes: %d bytes of events, %+v, %v", n, len(got), s, err)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	head := "time,domain,descriptor\n"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(head + "1795773601,d,a=b\n"))
	_ = z.Flush()
	flushed := packed.Len()
	_, _ = z.Write([]byte("1795773602,d,a=b\n"))
	_ = z.Close()
	whole := packed.String()
	for name, text := range map[string]string{"a.csv": head + "1795773600,d,a=b", "b.gz": whole, "cut.gz": whole[:flushed+3], "begun.gz": whole[:5], "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := func(names ...string) (n int, short []string, err error) {
		for i, name := range names {
			if name != "-" {
				names[i] = filepath.Join(dir, name)
			}
		}
		f, err := recorded.OpenFiles(names, strings.NewReader(head+"1795773602,d,a=b\n"))
		if err != nil {
			return 0, nil, err
		}
		defer f.Close()
		for r := recorded.New(f, recorded.Config{Parse: parse}); ; n++ {
			if _, err := r.Next(); errors.Is(err, io.EOF) {
				return n, r.Summary().Short, nil
			} else if err != nil {
				return n, nil, err
			}
		}
	}
	if n, short, err := all("a.csv", "b.gz", "empty", "-"); n != 4 || len(short) > 0 || err != nil {
		t.Errorf("%d, %v, %v; want 4 requests", n, short, err)
	}
	cut := []string{filepath.Join(dir, "begun.gz"), filepath.Join(dir, "cut.gz")} // in the order of their ends
	if n, short, err := all("cut.gz", "a.csv", "begun.gz"); n != 2 || !slices.Equal(short, cut) || err != nil {
		t.Errorf("%d, %v, %v; want the requests before the ends of files that are cut off, and which they are", n, short, err)
	}
	for _, name := range []string{"none", "."} {
		if _, _, err := all(name); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// FuzzLines reads hostile lines.
func FuzzLines(f *testing.F) {
	for _, s := range []string{
		"time,domain,descriptor\n1,d,a=b", `{"time":"2026-11-20T10:00:00Z","caller":"","outcome":"OUTCOME_ADMITTED"}`, `{"start_time":1,"path":"/?%zz"}`,
		`[2026-11-20T10:00:00.123Z] "GET /a?b=c HTTP/1.1" 429 RL 0 3 7 - "-" "c" "id" "h" "-"`, "{}\n{", `{"lost":"1","skipped":"1"}`,
	} {
		f.Add(s)
	}
	m, err := recorded.ParseTemplate("d p=%path% q=%b.c%", parse)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []recorded.Config{{}, {Mapping: m}, {Mapping: m, Format: "%START_TIME% %path% %b.c%x"}} {
			_, s, _ := read(t, c, text)
			if s.Unread > s.Lines {
				t.Errorf("%+v", s)
			}
		}
	})
}
