package console

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// playPage is the playground: a descriptor, the rule that it matches, and a simulation of requests.
type playPage struct {
	descriptorPage

	N      int    // number of requests to simulate
	Over   string // the time in which they arrive
	AsIs   string // the rule in YAML
	Other  string // the changed rule in YAML
	Error  string // the error in Other or Over
	Played []played
}

// played is the result of simulating a rule.
type played struct {
	Title    string
	Bars     []bar
	Passed   int
	Rejected int
	First    string // the time of the first rejection, or empty
}

// bar represents one request.
type bar struct {
	X, Y, Width, Height string // of SVG, in a box of 1000 × 40
	Passed              bool
	Label               string
}

// Limits of a simulation.
const (
	maxPlayed   = 500
	usualPlayed = 20
)

func (u *console) playground(ctx context.Context, r *http.Request) (*playPage, error) {
	p := playPage{descriptorPage: typed(r)}
	p.N, p.Over, p.Other = usualPlayed, cmp.Or(strings.TrimSpace(r.FormValue("over")), "1m"), r.FormValue("other")
	if n, err := strconv.Atoi(r.FormValue("n")); err == nil {
		p.N = max(1, min(n, maxPlayed))
	}
	if p.Requested {
		err := u.explain(ctx, &p.descriptorPage, 0)
		switch {
		case status.Code(err) == codes.InvalidArgument:
			p.Error = status.Convert(err).Message()
			return &p, nil
		case err != nil:
			return nil, err
		}
	}
	if rule := p.Is.GetRule(); rule != nil {
		p.AsIs = ruleYAML(rule)
	}
	p.Other = strings.ReplaceAll(cmp.Or(p.Other, p.AsIs), "\r\n", "\n")
	over, wrong := descriptors.ParseSpan(p.Over)
	if wrong != nil || over < 0 || over > 400*24*time.Hour {
		p.Error = "invalid time: use one such as 10s, 1m or 1d"
		return &p, nil //nolint:nilerr // the page shows it
	}
	for _, t := range []struct{ title, yaml string }{{"Current rule", p.AsIs}, {"Changed rule", p.Other}} {
		if t.yaml == "" || t.yaml == p.AsIs && len(p.Played) > 0 {
			continue
		}
		out, err := play(t.yaml, p.N, over)
		if err != nil {
			p.Error = err.Error()
			continue
		}
		out.Title = t.title
		p.Played = append(p.Played, out)
	}
	return &p, nil
}
