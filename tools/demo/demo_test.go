package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// TestTour runs the tour with a real Envoy on free ports, and compares it with README.md and docs/quickstart.md.
func TestTour(t *testing.T) {
	t.Chdir("../..")
	envoy, err := exec.Command("tools/need", "envoy").Output()
	if err != nil {
		t.Skipf("THE DEMO IS NOT TRIED: there is no Envoy; `tools/need envoy` says how to get one: %v", err)
	}
	program := testkit.Build{Packages: []string{"./cmd/ratelimitd"}}
	server := program.Path(t, "ratelimitd")
	t.Cleanup(func() { _ = program.Remove() })
	args, usual := []string{"-tour", "only", "-envoy", strings.TrimSpace(string(envoy)), "-server", server}, []string{server, "bin/ratelimitd"}
	var free proc.Ports
	for _, p := range usualPorts() {
		port, err := free.Free(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "-"+p.name, port)
		usual = append(usual, ":"+port, (&demo{ports: usualPorts()}).addr(p.name)[len("127.0.0.1"):])
	}
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, page := range []string{"README.md", "docs/quickstart.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, shown, found := strings.Cut(string(text), "$ make demo\n")
		shown, _, ended := strings.Cut(shown, "```")
		if !found || !ended {
			t.Fatalf("%s shows no make demo", page)
		}
		printed := varying(strings.NewReplacer(usual...).Replace(out.String()))
		for line := range strings.Lines(shown) {
			if line = strings.TrimSpace(line); line == "" || line == "…" {
				continue
			}
			_, after, printedThere := strings.Cut(printed, varying(line))
			if !printedThere {
				t.Errorf("%s shows the line %q, which is not printed there:\n%s", page, line, out.String())
				continue
			}
			printed = after
		}
	}
}

// varying replaces values that vary between runs.
func varying(text string) string {
	text = regexp.MustCompile(`ratelimitd-demo-\d+|kill -9 \d+|retry-after: \d+|\d+m\d+s|\d+\.\d s|\d+ more are|\d+ passed undecided|last \d+s`).ReplaceAllString(text, "N")
	return regexp.MustCompile(`\S+T\S+Z|[0-9a-f]{16}`).ReplaceAllString(text, "N")
}

// TestPorts: all ports in use are reported, with a command that uses others, and nothing is started.
func TestPorts(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	args := []string{"-envoy", "/nowhere"}
	for _, p := range usualPorts() {
		args = append(args, "-"+p.name, port)
	}
	var out bytes.Buffer
	err = run(t.Context(), args, &out)
	if err == nil || out.Len() > 0 {
		t.Fatalf("%v, printed %q; want an error alone", err, out.String())
	}
	command := `(?m)^to use others: make demo DEMO='`
	for i, p := range usualPorts() {
		if !regexp.MustCompile(`(?m)^ *` + port + `  ` + p.of + ` +address already in use$`).MatchString(err.Error()) {
			t.Errorf("%s is not named:\n%v", p.name, err)
		}
		if i > 0 {
			command += " "
		}
		command += "-" + p.name + ` \d+`
	}
	if !regexp.MustCompile(command + `'$`).MatchString(err.Error()) {
		t.Errorf("want one command for all ports:\n%v", err)
	}
}

// TestUnlike: a call with an unexpected answer ends the tour, and the error has both answers.
func TestUnlike(t *testing.T) {
	open := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer open.Close()
	d := &demo{out: new(bytes.Buffer), ports: []*port{{name: "edge", number: open.Listener.Addr().(*net.TCPAddr).Port}}}
	if err := d.calls(t.Context(), "alice", "/", 200, 429); err == nil || !strings.Contains(err.Error(), "call 2 should be answered 429, not 200") {
		t.Errorf("nothing is limited: %v", err)
	}
}
