package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A trace is a list of requests with a server's answers. A line of it is
//
//	TIME DESCRIPTORS [hits N] [give N] [every D] [by N clients] => ANSWERS [left N] [retry D] [reset D] [wait D] [step D]
//	     [header NAME VALUE] [metadata KEY=VALUE] [unlimited] [id <NAME>]
//	TIME [force] reset DESCRIPTOR => done | rejected
//	TIME reload FILE
//	TIME ratelimitd block | allow | limit | lift DOMAIN DESCRIPTOR [FLAGS]
//	TIME metric SERIES => N
//
// Descriptors are KEY=VALUE,…; several of one request are separated by '|'. Answers are one ✓ or ✗ for each request, or counts
// such as "3✓ 2✗". Times count from the start of a window; lines with equal times run in order. Assertions after the answers
// apply to the last answer, except "step", the interval between the waits of all. Remaining hits and times are of the first
// descriptor, or of the first ones, separated by '|'. A header value with blanks is in single quotes, and a missing header is
// ''. <NAME> in a descriptor is the ID in an earlier answer. A # begins a comment.

// traced is the server under test of a trace.
type traced struct {
	client  rlsv3.RateLimitServiceClient
	reset   func(ctx context.Context, domain, descriptor string, force bool) (done bool, err error)
	reload  func(rules string) error
	sleep   func(until time.Duration) error // from the start of the trace; going back is an error
	command func(ctx context.Context, args []string) error
	metric  func(series string) (string, error)

	ids map[string]string // reservations by name
}

// play runs the trace against s and reports each line with different answers.
func play(t *testing.T, s *traced, parts map[string]string) {
	t.Helper()
	s.ids = map[string]string{}
	for i, line := range strings.Split(strings.TrimSpace(parts["trace"]), "\n") {
		line, _, _ = strings.Cut(line, " # ")
		if strings.TrimSpace(line) == "" {
			continue
		}
		if err := playLine(t.Context(), s, parts, line); err != nil {
			t.Errorf("trace line %d: %s\n%v", i+1, line, err)
		}
	}
}

func playLine(ctx context.Context, s *traced, parts map[string]string, line string) error {
	ask, want, _ := strings.Cut(line, " => ")
	fields := strings.Fields(ask)
	if len(fields) < 2 {
		return errors.New("a line begins with a time and what happens")
	}
	at, err := time.ParseDuration(fields[0])
	if err != nil {
		return err
	}
	if err := s.sleep(at); err != nil {
		return err
	}
	switch fields[1] {
	case "reload", "ratelimitd":
		return s.manage(ctx, parts, fields[1:])
	case "metric":
		got, err := s.metric(fields[2])
		if err == nil && got != strings.TrimSpace(want) {
			err = fmt.Errorf("got %s", got)
		}
		return err
	case "force", "reset":
		force := fields[1] == "force"
		done, err := s.reset(ctx, domainOf(parts), fields[len(fields)-1], force)
		if got := map[bool]string{true: "done", false: "rejected"}[done]; err != nil || got != want {
			return fmt.Errorf("got %s, %w", got, err)
		}
		return nil
	}
	a, err := s.parseAsk(domainOf(parts), fields[1:])
	if err != nil {
		return err
	}
	e, err := parseExpect(want)
	if err != nil {
		return err
	}
	a.count = len(e.pattern)
	answers, err := s.ask(ctx, a, at)
	if err != nil {
		return err
	}
	if e.id != "" && len(answers) > 0 {
		s.ids[e.id] = answers[len(answers)-1].GetDynamicMetadata().GetFields()["reservation"].GetStringValue()
		if s.ids[e.id] == "" {
			return errors.New("the answer has no id")
		}
	}
	return e.check(answers, a.clients > 1)
}

// manage performs an operator's change.
func (s *traced) manage(ctx context.Context, parts map[string]string, words []string) error {
	if words[0] == "ratelimitd" {
		return s.command(ctx, words[1:])
	}
	rules, ok := parts[words[1]]
	if !ok {
		return fmt.Errorf("there is no file %s", words[1])
	}
	return s.reload(rules)
}

// domainOf returns the domain of the rules and the requests.
func domainOf(parts map[string]string) string {
	_, after, _ := strings.Cut("\n"+parts["rules.yaml"], "\ndomain: ")
	domain, _, _ := strings.Cut(after, "\n")
	return domain
}

// question is the left side of a line.
type question struct {
	request        *rlsv3.RateLimitRequest
	every          time.Duration
	clients, count int
}

func (s *traced) parseAsk(domain string, fields []string) (question, error) {
	a := question{request: &rlsv3.RateLimitRequest{Domain: domain}, clients: 1}
	for d := range strings.SplitSeq(fields[0], "|") {
		for name, id := range s.ids {
			d = strings.ReplaceAll(d, name, id)
		}
		a.request.Descriptors = append(a.request.Descriptors, descriptorOf(d))
	}
	for i := 1; i+1 < len(fields); i += 2 {
		n, err := strconv.ParseUint(fields[i+1], 10, 64)
		switch fields[i] {
		case "hits", "give":
			for _, d := range a.request.Descriptors {
				d.HitsAddend = wrapperspb.UInt64(n)
				d.IsNegativeHits = fields[i] == "give"
			}
		case "every":
			a.every, err = time.ParseDuration(fields[i+1])
		case "by": // by N clients
			a.clients = int(n)
			i++
		default:
			err = fmt.Errorf("unknown word %q", fields[i])
		}
		if err != nil {
			return question{}, err
		}
	}
	return a, nil
}

func descriptorOf(text string) *rlcommonv3.RateLimitDescriptor {
	d := &rlcommonv3.RateLimitDescriptor{}
	for e := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// ask makes the requests of a line, spread over its clients.
func (s *traced) ask(ctx context.Context, a question, at time.Duration) ([]*rlsv3.RateLimitResponse, error) {
	answers := make([]*rlsv3.RateLimitResponse, a.count)
	errs := make([]error, a.clients)
	var wg sync.WaitGroup
	for c := range a.clients {
		wg.Go(func() {
			for i := c; i < a.count && errs[c] == nil; i += a.clients {
				if errs[c] = s.sleep(at + time.Duration(i)*a.every); errs[c] == nil {
					answers[i], errs[c] = s.client.ShouldRateLimit(ctx, a.request)
				}
			}
		})
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// expect is the right side of a line.
type expect struct {
	pattern   []bool // admitted, for each request
	unlimited bool
	step      *time.Duration
	values    [][2]string // of the last answer
	headers   [][2]string
	id        string // name of the last answer's reservation
}

func parseExpect(s string) (expect, error) {
	var e expect
	fields := strings.Fields(s)
	for len(fields) > 0 {
		word := fields[0]
		fields = fields[1:]
		if strings.ContainsAny(word, "✓✗") {
			e.addPattern(word)
			continue
		}
		if word == "unlimited" {
			e.unlimited = true
			continue
		}
		if len(fields) < 1 || word == "header" && len(fields) < 2 {
			return e, fmt.Errorf("%q lacks its value", word)
		}
		switch word {
		case "header":
			value, n := quoted(fields[1:])
			e.headers = append(e.headers, [2]string{fields[0], value})
			fields = fields[n:]
		case "id":
			e.id = fields[0]
		case "step":
			d, err := time.ParseDuration(fields[0])
			if err != nil {
				return e, err
			}
			e.step = &d
		case "left", "retry", "reset", "wait", "metadata":
			e.values = append(e.values, [2]string{word, fields[0]})
		default:
			return e, fmt.Errorf("unknown word %q", word)
		}
		fields = fields[1:]
	}
	return e, nil
}

// quoted returns the value at the start of words, and the number of words in it.
func quoted(words []string) (value string, n int) {
	rest, ok := strings.CutPrefix(words[0], "'")
	if !ok {
		return words[0], 1
	}
	for n = 1; !strings.HasSuffix(rest, "'") && n < len(words); n++ {
		rest += " " + words[n]
	}
	return strings.TrimSuffix(rest, "'"), n
}

// addPattern adds a pattern such as "✓✗✓" or "17✓".
func (e *expect) addPattern(word string) {
	n, digits := 1, strings.TrimRight(word, "✓✗")
	if digits != "" {
		n, _ = strconv.Atoi(digits)
	}
	for _, r := range strings.TrimPrefix(word, digits) {
		for range n {
			e.pattern = append(e.pattern, r == '✓')
		}
	}
}

func (e *expect) check(answers []*rlsv3.RateLimitResponse, anyOrder bool) error {
	var got, want strings.Builder
	admitted, wanted := 0, 0
	for i, a := range answers {
		ok := a.GetOverallCode() == rlsv3.RateLimitResponse_OK
		if ok {
			admitted++
		}
		if e.pattern[i] {
			wanted++
		}
		got.WriteString(mark(ok))
		want.WriteString(mark(e.pattern[i]))
		if e.unlimited && a.GetStatuses()[0].GetCurrentLimit() != nil {
			return fmt.Errorf("answer %d has a limit: %v", i, a)
		}
	}
	if anyOrder && admitted != wanted || !anyOrder && got.String() != want.String() {
		return fmt.Errorf("got  %s (%d admitted)\nwant %s (%d)", got.String(), admitted, want.String(), wanted)
	}
	if len(answers) == 0 {
		return errors.New("no answers are expected")
	}
	if e.step != nil {
		return e.checkWaits(answers)
	}
	return e.checkLast(answers[len(answers)-1])
}

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// checkWaits asserts that each wait is a step longer than the previous one.
func (e *expect) checkWaits(answers []*rlsv3.RateLimitResponse) error {
	for i, a := range answers {
		want := time.Duration(i) * *e.step
		if got := metadataTime(a, 0, "wait_ms"); got != want {
			return fmt.Errorf("answer %d waits %v, want %v", i, got, want)
		}
	}
	return nil
}

func (e *expect) checkLast(a *rlsv3.RateLimitResponse) error {
	for _, f := range e.values {
		for i, value := range strings.Split(f[1], "|") {
			if err := checkValue(a, i, f[0], value); err != nil {
				return fmt.Errorf("%s: %w; the answer was %v", f[0], err, a)
			}
		}
	}
	for _, h := range e.headers {
		if got := header(a, h[0]); got != h[1] {
			return fmt.Errorf("header %s: got %q, want %q", h[0], got, h[1])
		}
	}
	return nil
}

// checkValue compares a value in an answer's i-th status.
func checkValue(a *rlsv3.RateLimitResponse, i int, name, value string) error {
	if i >= len(a.GetStatuses()) {
		return fmt.Errorf("there is no descriptor %d", i+1)
	}
	var got, want any
	switch name {
	case "left":
		got, want = strconv.Itoa(int(a.GetStatuses()[i].GetLimitRemaining())), value
	case "metadata":
		key, v, _ := strings.Cut(value, "=")
		got, want = a.GetDynamicMetadata().GetFields()["metadata"].GetStructValue().GetFields()[key].GetStringValue(), v
	default:
		d, err := time.ParseDuration(value)
		if err != nil {
			return err
		}
		got, want = metadataTime(a, i, map[string]string{"retry": "retry_after_ms", "reset": "reset_after_ms", "wait": "wait_ms"}[name]), d
	}
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

// metadataTime returns a duration in the i-th descriptor's DECISION_METADATA.
func metadataTime(a *rlsv3.RateLimitResponse, i int, name string) time.Duration {
	list := a.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
	if i >= len(list) {
		return -1
	}
	v, ok := list[i].GetStructValue().GetFields()[name]
	if !ok {
		return -1
	}
	return time.Duration(v.GetNumberValue() * float64(time.Millisecond))
}

func header(a *rlsv3.RateLimitResponse, name string) string {
	for _, h := range a.GetResponseHeadersToAdd() {
		if h.GetKey() == name {
			return h.GetValue()
		}
	}
	return ""
}
