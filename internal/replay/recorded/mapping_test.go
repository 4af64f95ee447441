package recorded_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/replay/recorded"
)

func mapping(t *testing.T, text string) *recorded.Mapping {
	t.Helper()
	m, err := recorded.ParseMapping([]byte(text), parse)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestExample creates the descriptors of examples/envoy/envoy.yaml.
func TestExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../examples/envoy/mapping.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, s, err := read(t, recorded.Config{Mapping: mapping(t, string(text))}, `
{"start_time":"2026-11-20T10:00:00.000Z","duration":900,"path":"/v1/chat","code":200,"flags":"-","remote_address":"10.0.0.1","user":"ann","tokens_used":"300"}
{"start_time":"2026-11-20T10:00:01.000Z","duration":1,"path":"/v1/chat","code":429,"flags":"RL","remote_address":"10.0.0.1","user":"ann","tokens_used":null}
{"start_time":"2026-11-20T10:00:02.000Z","duration":1,"path":"/","code":200,"flags":"-","remote_address":"10.0.0.1","user":null}
{"start_time":"2026-11-20T10:00:03.000Z","duration":1,"path":"/","code":200,"flags":"-","remote_address":"10.0.0.1","user":"ann","tokens_used":"7"}
`)
	want := `20 10:00:00.000000+900ms passed edge remote_address=10.0.0.1 user=ann,budget=tokens;hits=0 | at end edge user=ann,budget=tokens;hits=300
20 10:00:01.000000+1ms rejected edge remote_address=10.0.0.1 user=ann,budget=tokens;hits=0
20 10:00:02.000000+1ms passed edge remote_address=10.0.0.1
20 10:00:03.000000+1ms passed edge remote_address=10.0.0.1 user=ann
`
	if d := cmp.Diff(want, got); d != "" || err != nil || s.Unread > 0 {
		t.Errorf("%v, %v (-want +got):\n%s", err, s.First, d)
	}
}

// TestMapping has a mapping for each of Envoy's actions whose values logs can contain.
func TestMapping(t *testing.T) {
	t.Parallel()
	const line = `{"t":"2026-11-20T10:00:00Z","ms":5,"path":"/a/b?n=1&e=","u":"ann","downstream_remote_address":"10.1.2.3:55","cluster":"app",` +
		`"md":{"plan":"gold"},"host":"shop","sent":70,"empty":"","none":"-"}`
	const fields = `
domain: edge
fields:
  time: {of: t}
  duration: {of: ms}
  net: {of: remote_address, match: '^(?:\[.+\]:\d+|(\d+\.\d+)\.\d+\.\d+:\d+)$'}
  n: {of: path, match: '[?&]n=([^&]*)'}
  e: {of: path, match: '[?&]e=([^&]*)'}
  route: {of: path, match: '^/[^/?]*'}
  x: {of: path, match: '[?&]x=([^&]*)'}
descriptors:
`
	for rules, want := range map[string]string{
		`descriptor: "generic_key=v,user=%u%"`: "edge generic_key=v,user=ann",
		`descriptor: "k=%u%-%%"`:               "edge k=ann-%",
		`descriptor: "k=%u%-%missing%"`:        "-",
		`descriptor: k=%empty%`:                "-",
		`descriptor: k=%none%`:                 "-",
		`descriptor: "remote_address=%remote_address%,destination_cluster=%cluster%"`: "edge remote_address=10.1.2.3,destination_cluster=app",
		`descriptor: masked_remote_address=%net%.0.0/16`:                              "edge masked_remote_address=10.1.0.0/16",
		`descriptor: n=%n%`:                                                                       "edge n=1",
		`descriptor: e=%e%`:                                                                       "-",
		`descriptor: x=%x%`:                                                                       "-",
		`descriptor: route=%route%`:                                                               "edge route=/a",
		`descriptor: plan=%md.plan%`:                                                              "edge plan=gold",
		`{descriptor: match=v, when: {path: ^/a}}`:                                                "edge match=v",
		`{descriptor: match=v, when: {path: ^/a, u: ^bob$}}`:                                      "-",
		`{descriptor: match=v, unless: {u: ^ann$}}`:                                               "-",
		`{descriptor: match=v, unless: {u: ^bob$, x: .}}`:                                         "edge match=v",
		`{descriptor: match=v, unless: {u: ^bob$, n: .}}`:                                         "-",
		`{descriptor: match=v, when: {x: ""}}`:                                                    "-",
		`{descriptor: match=v, when: {n: }}`:                                                      "edge match=v",
		`{descriptor: match=v, unless: {n: }}`:                                                    "-",
		`{descriptor: match=v, when: {none: }}`:                                                   "-",
		`{descriptor: match=v, when: {remote_address: '^10\.\d+\.\d+\.\d+$'}}`:                    "edge match=v",
		"{descriptor: 'a=%x%,b=c', when: {x: .}}\n- {descriptor: b=c, unless: {x: .}}":            "edge b=c",
		`{descriptor: a=b;hits=7;negative}`:                                                       "edge a=b;hits=7;negative",
		`{descriptor: a=b;hits=7, hits: "%sent%"}`:                                                "edge a=b;hits=70",
		`{descriptor: a=b, hits: 9}`:                                                              "edge a=b;hits=9",
		`{descriptor: a=b, hits: 1000000001}`:                                                     "-",
		`{descriptor: a=b, hits: "%u%"}`:                                                          "-",
		`{descriptor: a=b, hits: "%missing%"}`:                                                    "-",
		`{descriptor: a=b;limit=5/minute}`:                                                        "edge a=b;limit=5/0xMINUTE",
		"{descriptor: a=b}\n- {descriptor: c=d, at_end: true}\n- {descriptor: e=f, at_end: true}": "edge a=b | at end edge c=d e=f",
	} {
		if !strings.HasPrefix(rules, "{") {
			rules = "{" + rules + "}"
		}
		got, s, err := read(t, recorded.Config{Mapping: mapping(t, fields+"- "+rules)}, line)
		if want = "20 10:00:00.000000+5ms " + want + "\n"; got != want || err != nil || s.Unread > 0 {
			t.Errorf("%s: %v %v\n got %s want %s", rules, err, s.First, got, want)
		}
	}
	got, _, err := read(t, recorded.Config{Mapping: mapping(t, fields+"- {descriptor: a=b, at_end: true}")}, line)
	if want := "20 10:00:00.005000 silent edge a=b\n"; got != want || err != nil {
		t.Errorf("only a call at the end: %q, %v, want %q", got, err, want)
	}
}

// TestRoutes distinguishes virtual hosts and routes by conditions, for a text log.
func TestRoutes(t *testing.T) {
	t.Parallel()
	m := mapping(t, `
domain: edge
fields:
  path: {match: '^[^?]*'}
descriptors:
- {descriptor: destination_cluster=a, when: {host: '(?i)^(.+\.)?shop\.example$', path: ^/exact$}}
- {descriptor: destination_cluster=a, when: {host: '(?i)^(.+\.)?shop\.example$', path: ^/both(/|$)}}
- {descriptor: generic_key=host, when: {host: '(?i)^(.+\.)?shop\.example$'}, unless: {path: '^(/exact|/none.*|/[0-9]+)$'}}
`)
	var log, want strings.Builder
	for _, tt := range []struct{ host, path, want string }{
		{"shop.example", "/exact?x", "edge destination_cluster=a"},
		{"SHOP.example", "/exactly", "edge generic_key=host"},
		{"www.shop.example", "/both/x", "edge destination_cluster=a generic_key=host"},
		{"shop.example", "/bothx", "edge generic_key=host"},
		{"shop.example", "/none", "-"},
		{"shop.example", "/12", "-"},
		{"other.example", "/", "-"},
	} {
		log.WriteString("1795773600 " + tt.host + " " + tt.path + "\n")
		want.WriteString("27 10:00:00.000000 " + tt.want + "\n")
	}
	got, s, err := read(t, recorded.Config{Mapping: m, Format: "%time% %host% %path%"}, log.String())
	if d := cmp.Diff(want.String(), got); d != "" || err != nil || s.Unread > 0 {
		t.Errorf("%v, %v (-want +got):\n%s", err, s.First, d)
	}
}

// TestWrongMappings: errors name the line of the mapping, or the field that the log lacks.
func TestWrongMappings(t *testing.T) {
	t.Parallel()
	const head = "domain: d\ndescriptors:\n"
	for text, want := range map[string]string{
		"":                           "must have a domain and descriptors",
		"domain: d\ndescriptors: []": "must have a domain and descriptors",
		"a: [":                       "line 1",
		"domain: [d]":                "line 1: cannot unmarshal",
		"static_resources: {}":       "line 1: unknown key static_resources (docs/replay.md",
		head + "- {descriptor: a=b, actions: []}":                  "line 3: unknown key actions",
		head + "- {hits: 1}":                                       "item 1 of descriptors: ",
		head + "- {descriptor: a=b}\n- {descriptor: a}":            `line 4: "a" is not of the form key=value`,
		head + "- {descriptor: a=%x}":                              "line 3: \"%x\": write a field between two percent signs",
		head + "- {descriptor: a=b, hits: '%x'}":                   "line 3: hits: ",
		head + "- {descriptor: [a]}":                               "line 3: cannot unmarshal",
		head + "- {descriptor: a=b, at_end: maybe}":                "line 3: cannot unmarshal !!str `maybe`",
		head + "- {descriptor: a=b, when: {x: (}}":                 "line 3: error parsing regexp",
		head + "- {descriptor: a=b, when: {x: [y]}}":               "line 3: cannot unmarshal",
		"fields: {x: {matches: y}}\n" + head + "- descriptor: a=b": "line 1: unknown key matches",
		"fields: {x: y}\n" + head + "- descriptor: a=b":            "line 1: cannot unmarshal !!str `y` (",
		"domain: d\u2028\n":                                        "line 1: ",
		head + "- {descriptor: " + strings.Repeat("a", 64<<10) + "=" + strings.Repeat("b", 64<<10) + "c}": "65537 bytes exceed the maximum of 65536",
	} {
		if m, err := recorded.ParseMapping([]byte(text), parse); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s: %v, %v, want %q", text, m, err, want)
		}
	}
	for _, text := range []string{"", "edge", "user=a b=c", "edge user", "edge user=%x"} {
		if _, err := recorded.ParseTemplate(text, parse); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	for format, want := range map[string]string{
		"%time%%path% x":               "fields need text between them",
		"%path% x":                     "the field start_time or time or timestamp",
		"%time% x":                     "the field path or x-envoy-origin-path is not in the format of the log, which has time",
		"%time%x%a":                    "write a field between two percent signs",
		"ngnix":                        "or be nginx, apache, combined or common",
		strings.Repeat("%a% ", 64<<10): "exceed the maximum of 65536",
	} {
		m := mapping(t, head+"- {descriptor: a=b, unless: {path: x}}")
		if _, _, err := read(t, recorded.Config{Mapping: m, Format: format}, "2026-11-20T10:00:00Z x\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s: %v, want %q", format, err, want)
		}
	}
	for _, line := range []string{"{}", "who,time"} {
		_, _, err := read(t, recorded.Config{}, line)
		if want := map[string]string{"{}": "--map is missing", "who,time": `column "who": without --map`}[line]; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// FuzzMapping parses arbitrary mappings, and reads a line with valid ones.
func FuzzMapping(f *testing.F) {
	f.Add("domain: d\nfields: {x: {of: path, match: (a)|b}}\ndescriptors: [{descriptor: a=%x%, hits: '%n%', when: {x: .}, unless: {y: }, at_end: true}]")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := recorded.ParseMapping([]byte(text), parse)
		if err != nil {
			return
		}
		for _, log := range []string{`{"time":1,"path":"/a"}`, "time,path,y\n1,/a,"} {
			_, _, _ = read(t, recorded.Config{Mapping: m}, log)
		}
	})
}
