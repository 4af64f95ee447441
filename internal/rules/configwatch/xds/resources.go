package xds

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Limits of held resources, as for a directory of files. Larger responses are errors.
const (
	maxResources = 10_000
	maxTotal     = 256 << 20 // bytes
)

var errTooMuch = fmt.Errorf("the control plane has more than %d resources, or %d bytes of them", maxResources, maxTotal)

// maxProblem is the maximum size of a problem's text in bytes.
const maxProblem = 8 << 10

// resource is a received resource.
type resource struct {
	name    string // in the delta protocol; otherwise, the value contains the name
	typeURL string
	value   []byte
}

// held is the resources received from the control plane: the last state of the world, until it is processed, or the
// result of all deltas.
type held struct {
	list   []resource
	byName map[string]resource
}

// merge adds a response. If the result exceeds the limits, merge discards everything and returns an error, and the
// stream must be closed.
func (h *held) merge(r response) error {
	if r.complete {
		h.list = r.resources
		return nil
	}
	if h.byName == nil {
		h.byName = map[string]resource{}
	}
	for _, name := range r.removed {
		delete(h.byName, name)
	}
	for _, res := range r.resources {
		h.byName[res.name] = res
	}
	total := 0
	for _, res := range h.byName {
		total += len(res.value)
	}
	if len(h.byName) > maxResources || total > maxTotal {
		*h = held{}
		return errTooMuch
	}
	return nil
}

// names returns the names of held resources, in the form of a first delta request's versions.
func (h *held) names() map[string]string {
	versions := make(map[string]string, len(h.byName))
	for name := range h.byName {
		versions[name] = ""
	}
	return versions
}

// sorted returns the held resources in an order that depends only on their contents, because control planes keep
// resources in maps.
func (h *held) sorted() []resource {
	all := slices.Collect(maps.Values(h.byName))
	for _, res := range h.list {
		res.name = nameIn(res.value)
		all = append(all, res)
	}
	slices.SortFunc(all, func(a, b resource) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.typeURL, b.typeURL), bytes.Compare(a.value, b.value))
	})
	return all
}

func digest(all []resource) [sha256.Size]byte {
	h := sha256.New()
	for _, res := range all {
		_, _ = fmt.Fprintf(h, "%d %s %d %s %d ", len(res.name), res.name, len(res.typeURL), res.typeURL, len(res.value)) // a hash never fails
		_, _ = h.Write(res.value)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// outcome is the result of compiling a set.
type outcome struct {
	known   bool
	digest  [sha256.Size]byte
	problem string // empty if the set was accepted
	laid    int    // Watch.Laid at that time
}

// apply compiles the held resources, unless the last set had the same contents, and returns the problem, or "" if they
// are accepted. It delays the next set.
func (c *Client) apply() (problem string) {
	c.dirty, c.typeProblem = false, ""
	begin := time.Now()
	all := c.held.sorted()
	c.held.list = nil
	next := outcome{known: true, digest: digest(all), laid: c.rules.OverlayRevision()}
	again := c.last.known && c.last.digest == next.digest && (c.last.problem == "" || c.last.laid == next.laid)
	if again {
		next.problem = c.last.problem
	} else {
		next.problem = c.compile(all)
	}
	c.last = next
	c.config.Hooks.Current(next.problem == "" && c.rules.UsesNewestOverlay())
	switch {
	case next.problem != "":
		c.config.Hooks.Event(EventInvalid)
	case again:
		c.config.Hooks.Event(EventUnchanged)
	default:
		c.config.Hooks.Event(EventTaken)
	}
	c.wait(max(pace, time.Since(begin)))
	return next.problem
}

// wait delays the next set by d, and an invalid set that repeats by repeatAfter.
func (c *Client) wait(d time.Duration) {
	now := time.Now()
	c.notBefore, c.repeatAt = now.Add(d), now.Add(max(d, repeatAfter))
}

// due returns the time at which the held resources may be compiled and answered. Only invalid sets that repeat are
// delayed by repeatAfter.
func (c *Client) due() time.Time {
	if c.last.problem == "" && c.typeProblem == "" || c.dirty && (!c.last.known || c.last.digest != digest(c.held.sorted())) {
		return c.notBefore
	}
	return c.repeatAt
}

// compile passes a set to the Watch.
func (c *Client) compile(all []resource) (problem string) {
	if len(all) == 0 {
		c.config.Hooks.Event(EventEmpty)
		if rules := c.rules.Rules(); c.config.KeepOnEmpty && rules != nil && len(rules.Files()) > 0 {
			c.log.Warn("the control plane has no rules; the previous ones stay in use", "server", c.config.Server)
			return ""
		}
		c.log.Warn("the control plane has no rules: nothing is limited", "server", c.config.Server)
	}
	sources, problems := decode(all)
	if err := c.rules.Update(sources, problems); err != nil {
		return shorten(err.Error())
	}
	return ""
}

// foreign handles a response of another type, and returns the problem. A repeated problem is reported only once.
func (c *Client) foreign(r response) (problem string) {
	c.config.Hooks.Current(false)
	c.config.Hooks.Event(EventInvalid)
	c.wait(pace)
	p := descriptors.Problem{File: "the response", Text: fmt.Sprintf("its type is %.200q: want %s", r.typeURL, TypeURL)}
	problem = shorten(p.String())
	if problem != c.typeProblem {
		c.typeProblem = problem
		if err := c.rules.Update(nil, descriptors.Problems{p}); err != nil {
			return shorten(err.Error())
		}
	}
	return problem
}

// shorten limits the length of a text for an answer.
func shorten(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxProblem {
		return s
	}
	return strings.ToValidUTF8(s[:maxProblem], "") + " …"
}
