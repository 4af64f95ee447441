package descriptors

import (
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Load reads, checks and compiles sources in the order given, which is also the order in which wildcards are tried
// where domains are merged. Problems holds every error and warning, ordered by source and line. If one of them is an
// error, Load returns a nil Set, and the Problems as the error too. Without any sources the Set has no rules.
func Load(sources []Source, o Options) (*Set, Problems, error) {
	c := compiler{set: &Set{byName: map[string]*Domain{}}, options: o, zones: zones{}}
	g := newGrammar()
	over := newOverlay(o.Overlay, o.Strict, g)
	reports := make([]*report, len(sources), len(sources)+len(o.Overlay))
	for i, s := range sources {
		c.set.files = append(c.set.files, s.Name)
		r := reader{report: report{file: s.Name, indent: s.indent, strict: o.Strict, overlays: over.files}, grammar: g}
		raw := r.source(&s)
		r.domain = raw.domain.s
		over.lay(&raw, &r)
		reports[i], c.report = &r.report, &r.report
		c.misread = r.failures > 0
		c.incomplete = c.incomplete || c.misread
		if !r.unread {
			c.file(&raw)
		}
	}
	c.unknownReplaced()
	var all Problems
	for _, r := range append(reports, over.reports...) {
		r.sort()
		for _, p := range r.problems {
			p.Domain = r.domain
			all = append(all, p)
		}
	}
	all = append(all, over.trials(o)...)
	if len(sources) > 0 {
		all = append(all, over.unmet()...)
	}
	if all.Failed() {
		return nil, all, all
	}
	return c.set, all, nil
}

// compiler turns raw structs into the nodes and rules of a set.
type compiler struct {
	*report // of the current source

	set     *Set
	options Options
	domain  *Domain
	zones   zones

	misread    bool       // the current source has errors of reading, so parts of it may be missing
	incomplete bool       // so has this or an earlier one
	limited    int        // how many descriptors with a limit there are, right or wrong
	named      []limitRef // the names of limits
	replaced   []limitRef // the names that limits replace
	spent      int        // comparisons of wildcards
}

// domainSettings records where the settings that all files of a domain have to agree on were found.
type domainSettings struct {
	charge, override, groupBy string // the place, for messages; empty if no file has the key
}

func (c *compiler) file(f *rawFile) {
	if f.domain.s == "" && !f.domain.broken {
		c.fail(f.domain.or(mark{1, 1}), "", "config file cannot have empty domain: want a name under domain")
	}
	c.domain = c.enterDomain(f)
	c.settings(f)
	c.quotaGroups(f)
	if f.overlay != nil {
		c.set.overlaid = append(c.set.overlaid, Overlaid{c.domain.Name, f.overlay.place, f.overlay.text})
	}
	c.odd(f.domain, kwDomain, f.domain.s)
	limited := c.limited
	c.descriptors(f.descriptors, scope{level: &c.domain.root, path: step{key: f.domain.s}.String()})
	if c.limited == limited && c.failures == 0 && (len(f.descriptors) == 0 || !c.options.MergeDomains) {
		c.warn(f.domain.at, f.domain.s, "no descriptor has rate_limit or rate_limits, so this limits nothing")
	}
}

// source reads a source in either form.
func (r *reader) source(s *Source) rawFile {
	if s.Tree != nil {
		return r.tree(s.Tree)
	}
	return r.read(s.Data)
}

// enterDomain returns the domain that a file belongs to. If there is an error it returns a domain outside the set, so
// that the rest of the file can still be checked.
func (c *compiler) enterDomain(f *rawFile) *Domain {
	name := f.domain.s
	earlier := c.set.byName[name]
	switch {
	case earlier != nil && c.options.MergeDomains:
		return earlier
	case earlier != nil:
		c.fail(f.domain.at, name, "duplicate domain '%s' in config file: %s has it already, and MERGE_DOMAIN_CONFIG is not true", name, c.set.files[earlier.file])
	}
	d := &Domain{Name: name, ID: crc32.ChecksumIEEE([]byte(name)), AllowOverride: true, QuotaGroupBy: c.options.QuotaGroupBy, file: len(c.set.files) - 1}
	if c.options.CalendarMonths {
		d.months = c.zones.zone("UTC")
	}
	if earlier == nil && name != "" {
		c.set.domains = append(c.set.domains, d)
		c.set.byName[name] = d
	}
	return d
}

// settings reads the keys that apply to the domain as a whole. A file without such a key takes on what another file
// says; two files that differ are an error.
func (c *compiler) settings(f *rawFile) {
	d := c.domain
	if f.charge.at.present() && !f.charge.broken {
		together := f.charge.s == "together"
		switch {
		case !together && f.charge.s != "each":
			c.fail(f.charge.at, d.Name, "unknown charge '%s': want each or together", f.charge.s)
		case d.settings.charge != "" && d.ChargeTogether != together:
			c.fail(f.charge.at, d.Name, "charge '%s' differs from what the domain has at %s: want the same in all its files", f.charge.s, d.settings.charge)
		default:
			d.ChargeTogether, d.settings.charge = together, c.where(f.charge.at)
		}
	}
	if f.override.at.present() {
		if d.settings.override != "" && d.AllowOverride != f.override.on {
			c.fail(f.override.at, d.Name, "allow_limit_override differs from what the domain has at %s: want the same in all its files", d.settings.override)
		} else {
			d.AllowOverride, d.settings.override = f.override.on, c.where(f.override.at)
		}
	}
}

// quotaGroups checks quota_group_by.
func (c *compiler) quotaGroups(f *rawFile) {
	d := c.domain
	if !f.groupByAt.present() {
		return
	}
	keys := make([]string, 0, len(f.groupBy))
	before := c.failures
	for _, k := range f.groupBy {
		switch {
		case k.broken:
		case k.s == "":
			c.fail(k.at, d.Name, "quota_group_by has an empty key: want the key of an entry, such as model")
		case slices.Contains(keys, k.s):
			c.fail(k.at, d.Name, "quota_group_by has '%s' twice", Shorten(k.s))
		}
		keys = append(keys, k.s)
	}
	switch {
	case len(keys) > MaxQuotaKeys:
		c.fail(f.groupByAt, d.Name, "quota_group_by has %d keys: want at most %d", len(keys), MaxQuotaKeys)
	case d.settings.groupBy != "" && !slices.Equal(keys, d.QuotaGroupBy):
		c.fail(f.groupByAt, d.Name, "quota_group_by differs from what the domain has at %s: want the same in all its files", d.settings.groupBy)
	}
	if c.failures == before {
		d.QuotaGroupBy, d.settings.groupBy = keys, c.where(f.groupByAt)
	}
}

func (c *compiler) where(at mark) string {
	return at.in(c.fileOf(at))
}

// scope is where compiled descriptors go.
type scope struct {
	level  *level
	parent *node // nil at the top
	path   string
}

func (c *compiler) descriptors(raw []rawDescriptor, s scope) {
	for i := range raw {
		c.descriptor(&raw[i], s)
	}
	c.unreachable(s)
}

func (c *compiler) descriptor(d *rawDescriptor, s scope) {
	n := &node{
		key: d.key.s, value: d.value.s, parent: s.parent,
		keyGlob: newGlob(d.key.s), valueGlob: newGlob(d.value.s),
		file: int32(len(c.set.files) - 1), at: d.at, flags: d.flags(),
	}
	path := s.path + "." + n.label()
	switch {
	case d.key.s == "":
		if !d.key.broken {
			c.fail(d.key.or(d.at), path, "descriptor has empty key: want the key of an entry")
		}
	case !d.value.broken:
		if earlier := s.level.add(n); earlier != nil {
			c.fail(d.at, path, "duplicate descriptor composite key '%s': %s has it already", path, earlier.at.in(c.set.files[earlier.file]))
		}
	}
	c.odd(d.key, kwKey, path)
	c.odd(d.value, kwValue, path)
	c.metadata(d.metadata, d.metadataAt, path)
	c.rule(d, n, path)
	if d.share.on && !n.isWildcard() && !d.key.broken && !d.value.broken {
		c.fail(d.share.at, path, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", n.label())
	}
	c.ownCounters(d, path)
	if len(d.children) > 0 {
		n.children = new(level)
		c.descriptors(d.children, scope{n.children, n, path})
		n.children.clip()
	}
}

// or returns where the text is, or at if it is missing.
func (t text) or(at mark) mark {
	if t.at.present() {
		return t.at
	}
	return at
}

func (d *rawDescriptor) flags() (f nodeFlags) {
	if d.detailed.on {
		f |= detailedMetric
	}
	if d.valueToMetric.on {
		f |= valueToMetric
	}
	if d.share.on {
		f |= shareThreshold
	}
	return f
}

// rule makes the rule of a node that has a limit.
func (c *compiler) rule(d *rawDescriptor, n *node, path string) {
	switch {
	case d.limit != nil && d.limitsAt.present():
		c.limited++
		c.fail(d.limitsAt, path, "rate_limit and rate_limits are on one descriptor: want one of them")
		return
	case d.plansAt.present() && (d.limit != nil || d.limitsAt.present()):
		c.limited++
		c.fail(d.plansAt, path, "plans and a limit of their own are on one descriptor: want plans, or rate_limit, or rate_limits")
		return
	case d.plansAt.present():
		c.limited++
		c.plans(d, n, path)
		return
	case d.limit == nil && !d.limitsAt.present():
		c.withoutLimit(d, path)
		return
	}
	c.limited++
	c.withoutPlans(d, path)
	c.overlaid(d, path)
	r := c.newRule(d, path)
	policy := d.policy
	if d.limit != nil {
		for _, k := range d.policy.written() {
			c.fail(k.at, r.Path, "%s is beside rate_limit: it belongs inside", k.k)
		}
		c.single(d.limit, r, r.Path)
		policy = d.limit.policy
	} else {
		c.list(d.limits, r, r.Path+"."+kwRateLimits)
	}
	c.finish(policy, r, n)
	n.rule = r
}

// overlaid notes what an overlay laid over a descriptor.
func (c *compiler) overlaid(d *rawDescriptor, path string) {
	if d.overlay != nil {
		c.set.overlaid = append(c.set.overlaid, Overlaid{path, d.overlay.place, d.overlay.text})
	}
}

// newRule returns the rule of a descriptor, as yet without limits.
func (c *compiler) newRule(d *rawDescriptor, path string) *Rule {
	r := &Rule{
		domain: c.domain.Name, Path: path, File: c.report.file, Line: d.at.number(), planAt: -1,
		Shadow: d.shadow.on, Quota: d.quota.on, Metadata: d.metadata,
	}
	if d.overlay != nil {
		r.Overlay = d.overlay.place
	}
	return r
}

// finish adds a rule with its limits to the set.
func (c *compiler) finish(p *rawPolicy, r *Rule, n *node) {
	c.policy(p, r, n)
	c.domain.FallsBack = c.domain.FallsBack || r.OnFailure != FailDefault && r.OnFailure != FailError
	r.bind(n)
	r.Index = len(c.set.rules)
	c.set.rules = append(c.set.rules, r)
}

// withoutLimit reports keys of a descriptor that have a meaning only together with a limit.
func (c *compiler) withoutLimit(d *rawDescriptor, path string) {
	for _, f := range []struct {
		k  string
		at mark
		on bool
	}{
		{kwShadowMode, d.shadow.at, d.shadow.on},
		{kwQuotaMode, d.quota.at, d.quota.on},
		{kwDetailedMetric, d.detailed.at, d.detailed.on},
		{kwMetadata, d.metadataAt, d.metadataAt.present()},
	} {
		if f.on {
			c.warn(f.at, path, "%s has no effect on a descriptor without a limit", f.k)
		}
	}
	for _, k := range d.policy.written() {
		c.fail(k.at, path, "%s does not apply to a descriptor without a limit: it belongs in rate_limit, or beside rate_limits", k.k)
	}
	c.withoutPlans(d, path)
}

// single gives a rule the limit of rate_limit, or of a plan.
func (c *compiler) single(l *rawLimit, r *Rule, path string) {
	item, ok := c.item(l, path, false)
	r.saysCalendar = l.own(engine.ParamCalendar.String()) != nil
	switch {
	case l.unlimited.on:
		r.Unlimited, r.RateLimits.list = true, []RateLimit{item}
	case ok:
		r.RateLimits.Append(&item)
	}
	c.replaces(l, []string{l.name.s}, path)
}

// list gives a rule the limits of rate_limits, or of a plan.
func (c *compiler) list(limits []rawLimit, r *Rule, above string) {
	names := make([]string, len(limits))
	for i := range limits {
		names[i] = limits[i].name.s
	}
	for i := range limits {
		l := &limits[i]
		path := fmt.Sprintf("%s[%d]", above, i)
		for _, k := range l.policy.written() {
			c.fail(k.at, path, "%s is in an item of rate_limits: it belongs beside rate_limits", k.k)
		}
		item, ok := c.item(l, path, true)
		c.replaces(l, names, path)
		if !ok {
			continue
		}
		shares := func(other engine.Limit) bool { return item.Limit.SharesState(&other) }
		if slices.ContainsFunc(r.RateLimits.Limits(), shares) {
			c.fail(l.at, path, "%s has the algorithm and the window of another limit here: want one for each algorithm and window", item)
		}
		r.RateLimits.Append(&item)
	}
}

func (c *compiler) replaces(l *rawLimit, names []string, path string) {
	if l.name.s != "" {
		c.named = append(c.named, c.ref(l.name, path))
	}
	for _, name := range l.replaces {
		switch {
		case name.broken:
		case name.s == "":
			c.fail(name.at, path, "should not have an empty replaces entry: want the name of another limit")
		case slices.Contains(names, name.s):
			c.fail(name.at, path, "replaces should not contain name of same descriptor: '%s' is its own", name.s)
		default:
			c.replaced = append(c.replaced, c.ref(name, path))
		}
	}
}

// bind ties a rule to its node, and works out which values of a request become part of names and metric keys.
func (r *Rule) bind(n *node) {
	r.node = n
	r.holderAt = -1
	path := n.path()
	var share, value bool
	for i, n := range path {
		share = share || n.flags&shareThreshold != 0
		value = value || n.flags&valueToMetric != 0
		if r.Holder != "" && n.key == r.Holder {
			r.holderAt = i
		}
	}
	r.rewritten = share || r.holderAt >= 0
	r.dynamic = value || n.flags&detailedMetric != 0
	if r.rewritten || r.dynamic {
		r.path = path
	}
}

func (l *level) clip() {
	l.nodes, l.groups = slices.Clip(l.nodes), slices.Clip(l.groups)
}
