package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func examplesOfEnvoy() []example {
	return []example{
		{name: "the files of the examples, as they are", want: "Envoy takes them", play: valid},
		{name: "mistakes that the command check finds", want: "Envoy takes them", play: checked},
		{name: "examples/envoy, /", want: "40 at once for each user, 429 then; headers say what is left, and when to come again", play: users},
		{name: "examples/envoy, /v1/chat", want: "4 of 300 tokens out of 1000, charged when an answer has ended; 429 then", play: chat, since: sinceAnswersRead},
		{name: "examples/envoy, without x-user", want: "limited by address alone: 60", play: strangers},
		{name: "examples/istio, the patches", want: "Envoy takes them, and rejects what is over the limit", play: istio},
		{name: "limits", want: "of each user exactly as many as the limit, in random order", play: exact, peer: true},
	}
}

// valid has Envoy check the files.
func valid(w *world) {
	dir, _ := w.certificates()
	for _, name := range []string{"contour", "emissary", "envoy", "envoy-llm", "envoy-rlqs", "envoy-tls", "kgateway"} {
		if name == "envoy" && !since(sinceRetryAfter) {
			w.got(true, "%s: not asked, because of enable_retry_after_header", name)
			continue
		}
		file, err := filepath.Abs(filepath.Join("..", "..", "examples", name, "envoy.yaml"))
		testkit.Check(w, err)
		out, err := w.validate(file, dir)
		w.got(err == nil, "%s: %v", name, err)
		if err != nil {
			w.Logf("%s", out)
		}
	}
}

// checked has Envoy check the files with which the command check is tested, whose mistakes it accepts.
func checked(w *world) {
	text, err := os.ReadFile(filepath.Join("..", "..", "cmd", "ratelimitd", "testdata", "script", "check_envoy_limits.txtar"))
	testkit.Check(w, err)
	for _, name := range []string{"mistakes.yaml", "right.yaml"} {
		_, content, _ := strings.Cut(string(text), "\n-- "+name+" --\n")
		content, _, _ = strings.Cut(content, "\n-- ")
		file := filepath.Join(w.TempDir(), name)
		testkit.Check(w, os.WriteFile(file, []byte(content), 0o600))
		out, err := w.validate(file, filepath.Dir(file))
		w.got(err == nil, "%s: %v", name, err)
		if err != nil {
			w.Logf("%s", out)
		}
	}
}

// validate has Envoy check a file, from the directory that its paths are relative to.
func (w *world) validate(file, dir string) ([]byte, error) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), *envoy, "--mode", "validate", "-c", file)
	cmd.Dir = dir
	return cmd.CombinedOutput()
}

// users goes on until a user is rejected.
func users(w *world) {
	up := w.upstream(hello)
	p := w.proxy(setup{example: "envoy", timeout: patient}, up, w.serveExample("envoy"))
	begin := time.Now()
	first := w.ask(p, "/", "alice")
	// of alice's 40, and of the address's 60: policies of both, in any case without names
	w.got(first.status == http.StatusOK && first.header.Get("x-ratelimit-remaining") == "39" &&
		regexp.MustCompile(`^20, 60;w=60(;name="[^"]*")?, 20;w=60(;name="[^"]*")?$`).MatchString(first.header.Get("x-ratelimit-limit")) &&
		regexp.MustCompile(`^\d+$`).MatchString(first.header.Get("x-ratelimit-reset")) && first.header.Get("x-envoy-ratelimited") == "",
		"the first is answered %s", told(first))
	passed, last := 1, first
	for last.status == http.StatusOK && passed < 59 {
		if last = w.ask(p, "/", "alice"); last.status == http.StatusOK {
			passed++
		}
	}
	most := 40 + int(time.Since(begin)/(3*time.Second)) + 1 // 20 come back in a minute
	w.got(passed >= 40 && passed <= most && up.of("alice") == passed, "%d of alice pass, %d reach the upstream", passed, up.of("alice"))
	retry := last.header.Get("retry-after")
	w.got(last.status == http.StatusTooManyRequests && last.header.Get("x-envoy-ratelimited") == "true" &&
		last.header.Get("x-ratelimit-remaining") == "0" && regexp.MustCompile(`^[1-3]$`).MatchString(retry) == since(sinceRetryAfter),
		"then she is answered %s", told(last))
	bob := w.ask(p, "/", "bob")
	w.got(bob.status == http.StatusOK, "bob: %d", bob.status)
	logged := func() bool { return strings.Count(p.log(), "\n") >= passed+2 }
	testkit.Eventually(w, "the access log has all requests", logged, p.log)
	var rejected struct {
		Code              int
		Flags, Path, User string
		Ratelimit         struct{ Descriptors []struct{ Rule string } }
	}
	for line := range strings.Lines(p.log()) {
		if err := json.Unmarshal([]byte(line), &rejected); err != nil {
			w.Fatalf("the access log has the line %q: %v", line, err)
		}
		if rejected.Code == http.StatusTooManyRequests {
			break
		}
	}
	of := fmt.Sprint(rejected.Ratelimit.Descriptors)
	w.got(rejected.Code == http.StatusTooManyRequests && rejected.Flags == "RL" && rejected.Path == "/" && rejected.User == "alice" &&
		strings.Contains(of, "edge.user"), "the access log says of that: %d %s %s %s, rules %s", rejected.Code, rejected.Flags, rejected.Path, rejected.User, of)
}

// told writes an answer.
func told(a answer) string {
	text := fmt.Sprint(a.status)
	for _, name := range []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after", "x-envoy-ratelimited"} {
		if value := strings.Join(a.header.Values(name), "` and `"); value != "" {
			text += fmt.Sprintf(", %s: `%s`", name, value)
		}
	}
	return text
}

// left returns what is left of a user's tokens.
func (s *service) left(w *world, domain, user string) int {
	w.Helper()
	return s.leftOf(w, domain, user, "tokens")
}

// leftOf is left of one of several budgets.
func (s *service) leftOf(w *world, domain, user, budget string) int {
	w.Helper()
	answer, err := adminv1.NewAdminServiceClient(s.conn).Peek(w.Context(), &adminv1.PeekRequest{
		Domain: domain, Entries: []*adminv1.Entry{{Key: "user", Value: user}, {Key: "budget", Value: budget}},
	})
	testkit.Check(w, err)
	return int(answer.GetCounter().GetLeft())
}

// chat spends a user's tokens. A charge comes when an answer has ended, and no one waits for it.
func chat(w *world) {
	silent := false
	up := w.upstream(func(out http.ResponseWriter, _ *http.Request) {
		if !silent {
			out.Header().Set("x-tokens-used", "300")
		}
		fmt.Fprintln(out, "hello")
	})
	s := w.serveExample("envoy")
	p := w.proxy(setup{example: "envoy", timeout: patient}, up, s)
	for i, want := range []int{700, 400, 100, 0} {
		a := w.ask(p, "/v1/chat", "alice")
		if a.status != http.StatusOK {
			w.got(false, "request %d: %d", i+1, a.status)
		}
		testkit.Eventually(w, fmt.Sprintf("%d are left", want), func() bool { return s.left(w, "edge", "alice") <= want+1 })
	}
	a := w.ask(p, "/v1/chat", "alice")
	w.got(a.status == http.StatusTooManyRequests && up.of("alice") == 4, "%d of alice reach the upstream; the fifth: %d", up.of("alice"), a.status)
	a = w.ask(p, "/", "alice")
	w.got(a.status == http.StatusOK, "/ is another limit: %d", a.status)
	silent = true // nothing else is on its way
	a = w.ask(p, "/v1/chat", "bob")
	w.ask(p, "/v1/chat", "carol") // its charge would come after bob's
	w.got(a.status == http.StatusOK && s.left(w, "edge", "bob") == 1000, "without x-tokens-used: %d, %d tokens left", a.status, s.left(w, "edge", "bob"))
}

// strangers sends no user, so that there is no descriptor of one.
func strangers(w *world) {
	up := w.upstream(hello)
	p := w.proxy(setup{example: "envoy", timeout: patient}, up, w.serveExample("envoy"))
	y := w.send(p, make([]string, 70)...)
	w.got(y.passed == 60 && y.rejected == 10 && up.all() == 60, "%d of 70 pass, %d reach the upstream", y.passed, up.all())
}

// perUser are rules of ten per hour for each user, for what happens while the store is away.
func perUser(onFailure string) string {
	return "domain: edge\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: hour\n      requests_per_unit: 10\n" +
		"      on_failure: " + onFailure + " #+\n      lease: off #+\n"
}

// exact has users come at random, and more often than they may.
func exact(w *world) {
	_, redis := w.redis()
	up := w.upstream(hello)
	p := w.proxy(setup{example: "envoy", deny: true, timeout: patient}, up, w.serve(perUser("error"), redis, awaitsRedis))
	names := []string{"alice", "bob", "carol", "dave", "erin"}
	sent, drawn := map[string]int{}, make([]string, 120)
	for i := range drawn {
		drawn[i] = names[w.rand.IntN(len(names))]
		sent[drawn[i]]++
	}
	y := w.send(p, drawn...)
	through, want, off := 0, 0, 0
	for _, name := range names {
		n := min(sent[name], 10)
		want, through = want+n, through+up.of(name)
		if up.of(name) != n || y.passedOf[name] != n {
			off++
		}
	}
	w.got(off == 0 && y.rejected == len(drawn)-want, "%d of %d reach the upstream, %d by the limits; %d users got something else", through, len(drawn), want, off)
}
