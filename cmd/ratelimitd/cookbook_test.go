package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// recipe is a part of a page: its text, what it has Envoy do, and its files as a trace has them, by name.
type recipe struct {
	title, text string
	envoy       []string
	parts       map[string]string
}

// recipes returns the parts of a page, which begin with headings such as "### "; the first one precedes the first heading.
// The first two words behind the fence of a block say what it is:
//
//	yaml rules, yaml NAME     rules, and others that a trace reloads; yaml overlay is laid over them
//	yaml envoy                a rate_limits, a Route, or an HTTP filter
//	csv tenants, sh settings  the table of tenants, and settings of the server
//	trace                     requests and answers; see trace_test.go
func recipes(t *testing.T, page, heading string) (all []recipe) {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```(\\w+) ?(\\w*)\n(.*?)^```$")
	for _, text := range regexp.MustCompile(`(?m)^`+heading).Split(page, -1) {
		r := recipe{text: text, parts: map[string]string{}}
		r.title, _, _ = strings.Cut(text, "\n")
		for _, b := range blocks.FindAllStringSubmatch(text, -1) {
			name, known := map[string]string{"yaml": b[2] + ".yaml", "csv": b[2] + ".csv", "sh": b[2], "trace": "trace"}[b[1]]
			switch {
			case name == "envoy.yaml":
				r.envoy = append(r.envoy, b[3])
			case !known || r.parts[name] != "":
				t.Errorf("%s: a second block %s, or one that this test does not know: %s %s", r.title, name, b[1], b[2])
			default:
				r.parts[name] = b[3]
			}
		}
		all = append(all, r)
	}
	return all
}

// TestCookbook: each recipe of docs/cookbook.md has what Envoy would load, formatted rules that the server loads without a
// warning, a trace whose requests Envoy would make and which the server answers so, and what to watch out for.
func TestCookbook(t *testing.T) {
	t.Parallel()
	all, db := recipes(t, readPage(t, "cookbook.md"), "### "), redistest.Start(t)
	if _, err := all[0].sent(); err != nil || len(all[0].envoy) == 0 {
		t.Errorf("before the recipes: %d blocks for Envoy, %v", len(all[0].envoy), err)
	}
	for _, r := range all[1:] {
		anchor := regexp.MustCompile(`[^a-z0-9-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(r.title), " ", "-"), "")
		if !strings.Contains(all[0].text, "](#"+anchor+")") {
			t.Errorf("the table does not lead to %q, #%s", r.title, anchor)
		}
		t.Run(r.title, func(t *testing.T) {
			if r.parts["rules.yaml"] == "" || r.parts["trace"] == "" || len(r.envoy) == 0 || !strings.Contains(r.text, "\n**Watch out.** ") {
				t.Fatal("a recipe needs blocks yaml envoy, yaml rules and trace, and a paragraph **Watch out.**")
			}
			for name, text := range r.parts {
				if !strings.HasSuffix(name, ".yaml") {
					continue
				}
				if name != "rules.yaml" && name != "overlay.yaml" && !strings.Contains(r.parts["trace"], " reload "+name+"\n") {
					t.Errorf("the trace does not reload %s", name)
				}
				formatted, problems := rulefmt.Format(descriptors.Source{Name: name, Data: []byte(text)})
				if len(problems) > 0 || !bytes.Equal(formatted, []byte(text)) {
					t.Errorf("%s is not as ratelimitd fmt writes it: %v\n%s", name, problems, formatted)
				}
			}
			r.checkSent(t)
			playOnMemory(t, r.parts)
			if !r.alone() {
				playOnRedis(t, r.parts, db, 2)
			}
		})
	}
}

// alone reports whether a trace needs what only playOnMemory has.
func (r *recipe) alone() bool {
	for _, name := range []string{"overlay.yaml", "tenants.csv", "settings"} {
		if r.parts[name] != "" {
			return true
		}
	}
	return regexp.MustCompile(`(?m) (ratelimitd|metric) | id <`).MatchString(r.parts["trace"])
}

// checkSent checks that Envoy would make the requests of the trace.
func (r *recipe) checkSent(t *testing.T) {
	t.Helper()
	limits, err := r.sent()
	testkit.Check(t, err)
	for line := range strings.Lines(r.parts["trace"]) {
		ask, _, _ := strings.Cut(line, " => ")
		fields := strings.Fields(ask)
		if len(fields) < 2 || !strings.Contains(fields[1], "=") {
			continue
		}
		a, err := new(traced).parseAsk("", fields[1:])
		if err == nil {
			err = envoytest.Sends(limits, a.request.GetDescriptors())
		}
		if err != nil {
			t.Errorf("%s%v", line, err)
		}
	}
}

// sent returns what Envoy sends by the blocks of the recipe.
func (r *recipe) sent() (all []*routev3.RateLimit, err error) {
	for _, text := range r.envoy {
		var limits []*routev3.RateLimit
		switch {
		case strings.HasPrefix(text, "rate_limits:"):
			var m ratelimitv3.RateLimitPerRoute
			err = envoytest.Decode(text, &m)
			limits = m.GetRateLimits()
		case strings.HasPrefix(text, "match:"):
			var route routev3.Route
			var m ratelimitv3.RateLimitPerRoute
			if err = envoytest.Decode(text, &route); err == nil {
				err = route.GetTypedPerFilterConfig()["envoy.filters.http.ratelimit"].UnmarshalTo(&m)
			}
			limits = m.GetRateLimits()
		default:
			var f hcmv3.HttpFilter
			var m ratelimitv3.RateLimit
			if err = envoytest.Decode(text, &f); err == nil {
				err = f.GetTypedConfig().UnmarshalTo(&m)
			}
			limits = m.GetRateLimits()
		}
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, text)
		}
		if len(limits) == 0 {
			return nil, fmt.Errorf("there are no rate_limits in\n%s", text)
		}
		all = append(all, limits...)
	}
	return all, nil
}
