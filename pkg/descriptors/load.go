package descriptors

import (
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/leaf/glob"
	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Load parses, validates and compiles sources in the given order, which is also the order of wildcards in merged domains. Problems
// contains every error and warning, ordered by source and line. If any of them is an error, Load returns a nil Set, and the Problems also
// as the error. Without sources, the Set has no rules.
func Load(sources []Source, o Options) (*Set, Problems, error) {
	c := compiler{set: &Set{byName: map[string]*Domain{}}, options: o, zones: zones{}}
	g := rulefile.NewGrammar()
	var transform rulefile.Transform
	if o.Transform != nil {
		transform = o.Transform()
	}
	reports := make([]*rulefile.Report, len(sources))
	for i, s := range sources {
		c.set.files, c.set.indents = append(c.set.files, s.Name), append(c.set.indents, s.Indent)
		r := rulefile.Reader{Report: rulefile.Report{File: s.Name, Indent: s.Indent, First: s.First, Strict: o.Strict}, Grammar: g}
		raw := r.Source(&s)
		r.Domain = raw.Domain.Value
		if transform.Apply != nil {
			transform.Apply(&raw, &r)
		}
		reports[i], c.Report = &r.Report, &r.Report
		c.misread, c.sent = r.Failures > 0, s.Root != nil
		c.incomplete = c.incomplete || c.misread
		if !r.Unread {
			c.file(&raw)
		}
	}
	c.unknownReplaced()
	var all Problems
	for _, r := range reports {
		all = append(all, r.Sorted()...)
	}
	if transform.Problems != nil {
		all = append(all, transform.Problems()...)
	}
	if all.Failed() {
		return nil, all, all
	}
	return c.set, all, nil
}

// compiler converts parsed files into the nodes and rules of a set.
type compiler struct {
	*rulefile.Report // of the current source

	set     *Set
	options Options
	domain  *Domain
	zones   zones

	sent       bool       // the current source came as values, from a control plane
	misread    bool       // parsing the current source failed, so parts of it may be missing
	incomplete bool       // the same for this or any earlier source
	limited    int        // number of descriptors with a limit, valid or not
	divided    int        // number of rules with rlqs, valid or not
	named      []limitRef // names of limits
	replaced   []limitRef // names that limits replace
	spent      int        // number of comparisons of wildcards
}

// domainSettings records the places of the settings that must be equal in all files of a domain.
type domainSettings struct {
	charge, override, groupBy string // place for messages; empty if no file has the key
}

// file compiles a file.
func (c *compiler) file(f *rulefile.File) {
	if f.Domain.Value == "" && !f.Domain.Broken {
		c.Fail(f.Domain.Or(rulefile.Mark{Line: 1, Column: 1}), "", "config file cannot have empty domain: set domain to a name")
	}
	c.domain = c.enterDomain(f)
	c.settings(f)
	c.quotaGroups(f)
	if f.Overlay != nil {
		c.set.overlaid = append(c.set.overlaid, Overlaid{c.domain.Name, f.Overlay.Place, f.Overlay.Keys})
	}
	c.odd(f.Domain, rulefile.KeyDomain, f.Domain.Value)
	limited := c.limited
	c.descriptors(f.Descriptors, scope{level: &c.domain.root, path: rulefile.Step{Key: f.Domain.Value}.String()})
	if c.limited == limited && c.Failures == 0 && (len(f.Descriptors) == 0 || !c.options.MergeDomains) {
		c.Warn(f.Domain.At, f.Domain.Value, "no descriptor has rate_limit or rate_limits, so this limits nothing")
	}
}

// enterDomain returns the domain of a file. After an error it returns a domain outside the set, so that the rest of the file can be
// validated.
func (c *compiler) enterDomain(f *rulefile.File) *Domain {
	name := f.Domain.Value
	earlier := c.set.byName[name]
	switch {
	case earlier != nil && c.options.MergeDomains:
		return earlier
	case earlier != nil:
		c.Fail(f.Domain.At, name,
			"duplicate domain '%s' in config file: %s has it already, and MERGE_DOMAIN_CONFIG is not true", name, earlier.place)
	}
	d := &Domain{Name: name, ID: crc32.ChecksumIEEE([]byte(name)), AllowOverride: true, QuotaGroupBy: c.options.QuotaGroupBy, place: c.where(f.Domain.At)}
	if c.options.CalendarMonths {
		d.months = c.zones.zone("UTC")
	}
	if earlier == nil && name != "" {
		c.set.domains = append(c.set.domains, d)
		c.set.byName[name] = d
	}
	return d
}

// settings reads the keys of the domain. A file without such a key inherits it from another file; conflicting files are an error.
func (c *compiler) settings(f *rulefile.File) {
	d := c.domain
	if charge := f.Get(rulefile.KeyCharge); c.word(charge, "", d.Name) {
		if together := charge.Value == "together"; d.settings.charge != "" && d.ChargeTogether != together {
			c.Fail(charge.At, d.Name,
				"charge '%s' differs from what the domain has at %s: use the same value in all its files", charge.Value, d.settings.charge)
		} else {
			d.ChargeTogether, d.settings.charge = together, c.where(charge.At)
		}
	}
	if override := f.Get(rulefile.KeyAllowLimitOverride); override.Valid() {
		if d.settings.override != "" && d.AllowOverride != override.On() {
			c.Fail(override.At, d.Name,
				"allow_limit_override differs from what the domain has at %s: use the same value in all its files", d.settings.override)
		} else {
			d.AllowOverride, d.settings.override = override.On(), c.where(override.At)
		}
	}
}

// quotaGroups validates quota_group_by.
func (c *compiler) quotaGroups(f *rulefile.File) {
	d := c.domain
	if !f.GroupByAt.Present() {
		return
	}
	if len(f.GroupBy) > rulefile.MaxQuotaKeys {
		c.Fail(f.GroupByAt, d.Name, "quota_group_by has %d keys: want at most %d", len(f.GroupBy), rulefile.MaxQuotaKeys)
		return
	}
	keys := make([]string, 0, len(f.GroupBy))
	before := c.Failures
	for _, k := range f.GroupBy {
		switch {
		case k.Broken:
		case k.Value == "":
			c.Fail(k.At, d.Name, "quota_group_by has an empty key: use the key of an entry, such as model")
		case slices.Contains(keys, k.Value):
			c.Fail(k.At, d.Name, "quota_group_by has '%s' twice", plain.Shorten(k.Value))
		}
		keys = append(keys, k.Value)
	}
	if d.settings.groupBy != "" && !slices.Equal(keys, d.QuotaGroupBy) {
		c.Fail(f.GroupByAt, d.Name, "quota_group_by differs from what the domain has at %s: use the same value in all its files", d.settings.groupBy)
	}
	if c.Failures == before {
		d.QuotaGroupBy, d.settings.groupBy = keys, c.where(f.GroupByAt)
	}
	for _, r := range c.set.rules { // of earlier files of the domain
		if r.domain == d.Name && r.byAt >= 0 && r.Quota {
			c.Fail(f.GroupByAt, d.Name, "quota_group_by cannot be combined with reserve by an entry, which %s has in quota mode", r.Path)
		}
	}
}

// where returns a place for messages.
func (c *compiler) where(at rulefile.Mark) string {
	return c.InFile(at).In(c.FileOf(at))
}

// scope is the destination of compiled descriptors.
type scope struct {
	level  *Level
	parent *Node // nil at the top level
	path   string
}

// descriptors compiles the descriptors of a level.
func (c *compiler) descriptors(raw []rulefile.Descriptor, s scope) {
	for i := range raw {
		c.descriptor(&raw[i], s)
	}
	c.unreachable(s)
}

// descriptor compiles a descriptor and those below it.
func (c *compiler) descriptor(d *rulefile.Descriptor, s scope) {
	n := &Node{
		Key: d.Key.Value, Value: d.Value.Value, parent: s.parent,
		keyGlob: glob.New(d.Key.Value), valueGlob: glob.New(d.Value.Value),
		file: int32(len(c.set.files) - 1), at: d.At, flags: flagsOf(d),
	}
	path := s.path + "." + n.Label()
	switch {
	case d.Key.Value == "":
		if !d.Key.Broken {
			c.Fail(d.Key.Or(d.At), path, "descriptor has empty key: use the key of an entry")
		}
	case !d.Value.Broken:
		if earlier := s.level.add(n); earlier != nil {
			c.Fail(d.At, path, "duplicate descriptor composite key '%s': %s has it already: use one descriptor, with all limits in rate_limits and all children in descriptors",
				path, c.set.Place(earlier))
		}
	}
	c.odd(d.Key, rulefile.KeyKey, path)
	c.odd(d.Value, rulefile.KeyValue, path)
	c.metadata(d.Metadata, d.MetadataAt, path)
	divided := c.divided
	c.rule(d, n, path)
	if share := d.Get(rulefile.KeyShareThreshold); share.On() && !n.IsWildcard() && !d.Key.Broken && !d.Value.Broken {
		c.Fail(share.At, path, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", n.Label())
	}
	if len(d.Children) > 0 {
		n.Children = new(Level)
		c.descriptors(d.Children, scope{n.Children, n, path})
		n.Children.clip()
	}
	c.ownCounters(d, path, c.divided > divided)
}

// flagsOf returns the flags of a descriptor.
func flagsOf(d *rulefile.Descriptor) (f nodeFlags) {
	if d.Get(rulefile.KeyDetailedMetric).On() {
		f |= detailedMetric
	}
	if d.Get(rulefile.KeyValueToMetric).On() {
		f |= valueToMetric
	}
	if d.Get(rulefile.KeyShareThreshold).On() {
		f |= shareThreshold
	}
	return f
}

// rule creates the rule of a node if it has a limit.
func (c *compiler) rule(d *rulefile.Descriptor, n *Node, path string) {
	switch {
	case d.Limit != nil && d.LimitsAt.Present():
		c.limited++
		c.Fail(d.LimitsAt, path, "rate_limit and rate_limits are on one descriptor: use only one of them")
		return
	case d.PlansAt.Present() && (d.Limit != nil || d.LimitsAt.Present()):
		c.limited++
		c.Fail(d.PlansAt, path, "the descriptor has both plans and a limit of its own: use plans, rate_limit or rate_limits")
		return
	case d.PlansAt.Present():
		c.limited++
		c.plans(d, n, path)
		return
	case d.Limit == nil && !d.LimitsAt.Present():
		c.withoutLimit(d, path)
		return
	}
	c.limited++
	c.withoutPlans(d, path)
	c.overlaid(d, path)
	r := c.newRule(d, path)
	policy := d.Fields
	if d.Limit != nil {
		for _, k := range d.In(rulefile.InLimit) {
			c.Fail(k.At, r.Path, "%s is beside rate_limit: it belongs inside", k.Name)
		}
		c.single(d.Limit, r, r.Path)
		policy = d.Limit.Fields
	} else {
		c.list(d.Limits, r, r.Path+"."+rulefile.KeyRateLimits)
	}
	c.finish(policy, r, n)
	n.Rule = r
}

// overlaid records the changes of an overlay to a descriptor.
func (c *compiler) overlaid(d *rulefile.Descriptor, path string) {
	if d.Overlay != nil {
		c.set.overlaid = append(c.set.overlaid, Overlaid{path, d.Overlay.Place, d.Overlay.Keys})
	}
}

// newRule returns the rule of a descriptor, without limits.
func (c *compiler) newRule(d *rulefile.Descriptor, path string) *Rule {
	r := &Rule{
		domain: c.domain.Name, Path: path, File: c.File, Line: d.At.Number(), planAt: -1,
		Shadow: d.Get(rulefile.KeyShadowMode).On(), Quota: d.Get(rulefile.KeyQuotaMode).On(), Metadata: d.Metadata,
	}
	if d.Overlay != nil {
		r.Overlay = d.Overlay.Place
	}
	return r
}

// finish adds a rule with its limits to the set.
func (c *compiler) finish(p rulefile.Fields, r *Rule, n *Node) {
	c.policy(p, r, n)
	c.bounded(r, n)
	c.domain.FallsBack = c.domain.FallsBack || r.OnFailure != FailDefault && r.OnFailure != FailError
	r.bind(n)
	r.Index = len(c.set.rules)
	c.set.rules = append(c.set.rules, r)
}

// withoutLimit reports keys of a descriptor that require a limit.
func (c *compiler) withoutLimit(d *rulefile.Descriptor, path string) {
	const useless = "%s has no effect on a descriptor without a limit"
	for _, k := range []string{rulefile.KeyShadowMode, rulefile.KeyQuotaMode, rulefile.KeyDetailedMetric} {
		warn := c.Warn
		if c.sent && k == rulefile.KeyShadowMode {
			warn = c.Note // since Envoy Gateway sets it on each part of a policy's descriptors
		}
		if f := d.Get(k); f.On() {
			warn(f.At, path, useless, k)
		}
	}
	if d.MetadataAt.Present() {
		c.Warn(d.MetadataAt, path, useless, rulefile.KeyMetadata)
	}
	for _, k := range d.In(rulefile.InLimit) {
		c.Fail(k.At, path, "%s does not apply to a descriptor without a limit: it belongs in rate_limit, or beside rate_limits", k.Name)
	}
	c.withoutPlans(d, path)
}

// single adds the limit of rate_limit, or of a plan, to a rule.
func (c *compiler) single(l *rulefile.Limit, r *Rule, path string) {
	item, ok := c.item(l, path, false)
	r.hasCalendarKey = l.Get(engine.ParamCalendar.String()).At.Present()
	switch {
	case l.Get(rulefile.KeyUnlimited).On():
		r.Unlimited, r.RateLimits.list = true, []RateLimit{item}
	case ok:
		r.RateLimits.Append(&item)
	}
	c.replaces(l, []string{item.Name}, path)
}

// list adds the limits of rate_limits, or of a plan, to a rule.
func (c *compiler) list(limits []rulefile.Limit, r *Rule, above string) {
	names := make([]string, len(limits))
	for i := range limits {
		names[i] = limits[i].Get(rulefile.KeyName).Value
	}
	for i := range limits {
		l := &limits[i]
		path := fmt.Sprintf("%s[%d]", above, i)
		item, ok := c.item(l, path, true)
		c.replaces(l, names, path)
		if !ok {
			continue
		}
		shares := func(other engine.Limit) bool { return item.Limit.SharesState(&other) }
		if slices.ContainsFunc(r.RateLimits.Limits(), shares) {
			c.Fail(l.At, path, "%s has the algorithm and the window of another limit here: use one limit for each algorithm and window", item)
		}
		r.RateLimits.Append(&item)
	}
}

// replaces validates the replaces of a limit. names are the names of the rule's limits.
func (c *compiler) replaces(l *rulefile.Limit, names []string, path string) {
	if name := l.Get(rulefile.KeyName); name.Value != "" {
		c.named = append(c.named, c.ref(name.Text, path))
	}
	for _, name := range l.Replaces {
		switch {
		case name.Broken:
		case name.Value == "":
			c.Fail(name.At, path, "should not have an empty replaces entry: use the name of another limit")
		case slices.Contains(names, name.Value):
			c.Fail(name.At, path, "replaces should not contain name of same descriptor: '%s' is its own", name.Value)
		default:
			c.replaced = append(c.replaced, c.ref(name, path))
		}
	}
}

// bind attaches a rule to its node and determines which values of a request become part of names and metric keys.
func (r *Rule) bind(n *Node) {
	r.node = n
	r.holderAt, r.byAt = -1, -1
	path := n.path()
	var share, value bool
	for i, n := range path {
		share = share || n.flags&shareThreshold != 0
		value = value || n.flags&valueToMetric != 0
		if r.Holder != "" && n.Key == r.Holder {
			r.holderAt = i
		}
		if r.Reserve != nil && r.Reserve.By != "" && n.Key == r.Reserve.By {
			r.byAt = i
		}
	}
	r.rewritten = share || r.holderAt >= 0 || r.byAt >= 0
	r.dynamic = value || n.flags&detailedMetric != 0
	if r.rewritten || r.dynamic {
		r.path = path
	}
}

// clip frees unused capacity.
func (l *Level) clip() {
	l.nodes, l.groups = slices.Clip(l.nodes), slices.Clip(l.groups)
}
