package descriptors

import (
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The raw structs hold what a file says and where it says it, before anything but types is checked. A zero mark means
// that the key is absent. broken means that an error about the value has already been reported.

type text struct {
	s      string
	at     mark
	broken bool
}

type flag struct {
	on bool
	at mark
}

type number struct {
	n  uint64
	at mark
}

type rawFile struct {
	domain, charge text
	override       flag
	groupBy        []text // quota_group_by
	groupByAt      mark
	descriptors    []rawDescriptor
	overlay        *pattern // that was laid over its keys; nil if none was
}

type rawDescriptor struct {
	at         mark
	key, value text
	children   []rawDescriptor

	limit    *rawLimit // rate_limit
	limitsAt mark
	limits   []rawLimit // rate_limits
	policy   *rawPolicy // beside rate_limits
	planOf   text
	plansAt  mark
	plans    []rawPlan

	shadow, quota, detailed, valueToMetric, share flag
	metadata                                      map[string]any
	metadataAt                                    mark

	overlay *pattern // that was laid over it; nil if none was
}

// rawLimit is rate_limit, or an item of rate_limits.
type rawLimit struct {
	at        mark
	unit      text
	requests  number
	unlimited flag
	name      text
	replaces  []text
	owns      []ownKey   // our own keys of a limit, each once
	policy    *rawPolicy // inside rate_limit
}

// rawPolicy holds our own keys of a descriptor.
type rawPolicy struct {
	onFailure, holder, lease, headers text
	penaltyAt                         mark
	penalty                           rawPenalty
	reserveAt                         mark
	reserve                           rawReserve
}

type rawPenalty struct {
	duration, on, max text
	escalate          number
}

type rawReserve struct {
	ttl, onExpiry, entry text
	estimate             number
}

// file reads the root of a source.
func (r *reader) file(n *yaml.Node) (f rawFile) {
	r.trail = []step{{key: peek(n, kwDomain)}}
	r.root(n, &f)
	return f
}

// root reads the keys of a map into f.
func (r *reader) root(n *yaml.Node, f *rawFile) {
	r.mapping(n, inRoot, func(k string, v *yaml.Node) {
		switch k {
		case kwDomain:
			f.domain = r.text(k, v)
		case kwCharge:
			f.charge = r.text(k, v)
		case kwAllowLimitOverride:
			f.override = r.flag(k, v)
		case kwQuotaGroupBy:
			f.groupBy, f.groupByAt = r.texts(k, v)
		case kwDescriptors:
			f.descriptors = r.descriptors(v)
		}
	})
}

// descriptors reads a list of descriptors.
func (r *reader) descriptors(n *yaml.Node) []rawDescriptor {
	items, leave, ok := r.list(kwDescriptors, n)
	if !ok {
		return nil
	}
	defer leave()
	if len(items) > 0 && r.tooDeep(at(n)) {
		return nil
	}
	out := make([]rawDescriptor, 0, len(items))
	for _, item := range items {
		if !r.isElement(item) {
			continue
		}
		m := target(item)
		r.trail = append(r.trail, step{peek(m, kwKey), peek(m, kwValue)})
		out = append(out, rawDescriptor{at: at(item)})
		r.descriptor(item, &out[len(out)-1])
		r.trail = r.trail[:len(r.trail)-1]
	}
	return out
}

// tooDeep returns true, and reports an error, if the descriptors being read are nested too deep.
func (r *reader) tooDeep(where mark) bool {
	if len(r.trail) <= MaxDepth {
		return false
	}
	r.fail(where, r.path(), "descriptors are nested more than %d deep", MaxDepth)
	return true
}

func (r *reader) descriptor(n *yaml.Node, d *rawDescriptor) {
	r.mapping(n, inDescriptor, func(k string, v *yaml.Node) {
		switch k {
		case kwKey:
			d.key = r.text(k, v)
		case kwValue:
			d.value = r.text(k, v)
		case kwDescriptors:
			d.children = r.descriptors(v)
		case kwRateLimit:
			r.rateLimit(v, d)
		case kwRateLimits:
			r.rateLimits(v, d)
		case kwPlanOf:
			d.planOf = r.text(k, v)
		case kwPlans:
			r.plans(v, d)
		case kwShadowMode:
			d.shadow = r.flag(k, v)
		case kwQuotaMode:
			d.quota = r.flag(k, v)
		case kwDetailedMetric:
			d.detailed = r.flag(k, v)
		case kwValueToMetric:
			d.valueToMetric = r.flag(k, v)
		case kwShareThreshold:
			d.share = r.flag(k, v)
		case kwMetadata:
			d.metadata, d.metadataAt = r.metadata(v), at(v)
		default:
			d.policy = r.policy(d.policy, k, v)
		}
	})
}

// rateLimit reads rate_limit. If it is repeated, or comes from a merge, later keys are laid over earlier ones, as in
// the reference.
func (r *reader) rateLimit(n *yaml.Node, d *rawDescriptor) {
	if r.isNull(n) {
		d.limit = nil
		return
	}
	if !r.isMapping(kwRateLimit, n) {
		return
	}
	if d.limit == nil {
		d.limit = new(rawLimit)
	}
	d.limit.at = at(n)
	r.limit(n, inLimit, d.limit)
}

func (r *reader) rateLimits(n *yaml.Node, d *rawDescriptor) {
	d.limits, d.limitsAt = nil, mark{}
	if r.isNull(n) {
		return
	}
	d.limitsAt = at(n)
	d.limits = r.items(kwRateLimits, n)
}

// items reads the list of limits that a key has.
func (r *reader) items(k string, n *yaml.Node) (limits []rawLimit) {
	items, leave, ok := r.list(k, n)
	if !ok {
		return nil
	}
	defer leave()
	if !r.countOK(k, len(items), at(n)) {
		return nil
	}
	for _, item := range items {
		if r.isElement(item) {
			limits = append(limits, rawLimit{at: at(item)})
			r.limit(item, inItem, &limits[len(limits)-1])
		}
	}
	return limits
}

// countOK checks the number of limits in the list that a key has, and reports an error if it is out of range.
func (r *reader) countOK(k string, n int, where mark) bool {
	if n > 0 && n <= maxItems {
		return true
	}
	r.fail(where, r.path(), "%s has %d items: want 1 to %d", k, n, maxItems)
	return false
}

func (r *reader) limit(n *yaml.Node, where place, l *rawLimit) {
	r.mapping(n, where, func(k string, v *yaml.Node) {
		switch k {
		case kwUnit:
			l.unit = r.text(k, v)
		case kwRequestsPerUnit:
			l.requests = r.number(k, v)
		case kwUnlimited:
			l.unlimited = r.flag(k, v)
		case kwName:
			l.name = r.text(k, v)
		case kwReplaces:
			l.replaces = r.replaces(v)
		case kwOnFailure, kwPenalty, kwHolder, kwLease, kwHeaders, kwReserve:
			l.policy = r.policy(l.policy, k, v)
		default:
			r.own(l, k, v)
		}
	})
}

// own reads one of our own keys of a limit, of which the last one counts. A number or a flag that is null is absent.
func (r *reader) own(l *rawLimit, k string, v *yaml.Node) {
	l.owns = slices.DeleteFunc(l.owns, func(o ownKey) bool { return o.k == k })
	own := ownKey{k: k}
	before := r.failures
	switch kindOf(k) {
	case engine.KindNumber:
		n := r.number(k, v)
		own.n, own.at = n.n, n.at
	case engine.KindFlag:
		f := r.flag(k, v)
		own.at = f.at
		if f.on {
			own.n = 1
		}
	case engine.KindTime, engine.KindWord, engine.KindZone:
		own.text = r.text(k, v)
	}
	if r.failures > before {
		own.at, own.broken = at(v), true
	}
	if own.at.present() {
		l.owns = append(l.owns, own)
	}
}

// kindOf returns what one of our own keys of a limit takes.
func kindOf(k string) engine.Kind {
	for p := range engine.Parameters() {
		if p.String() == k {
			return p.Kind()
		}
	}
	if k == kwUnitMultiplier {
		return engine.KindNumber
	}
	return engine.KindWord // algorithm
}

func (r *reader) replaces(n *yaml.Node) []text {
	items, leave, ok := r.list(kwReplaces, n)
	if !ok {
		return nil
	}
	defer leave()
	out := make([]text, 0, len(items))
	for _, item := range items {
		if !r.isElement(item) {
			continue
		}
		name := text{at: at(item)}
		r.mapping(item, inReplaces, func(k string, v *yaml.Node) { name = r.text(k, v) })
		out = append(out, name)
	}
	return out
}

func (r *reader) policy(p *rawPolicy, k string, v *yaml.Node) *rawPolicy {
	if p == nil {
		p = new(rawPolicy)
	}
	switch k {
	case kwOnFailure:
		p.onFailure = r.text(k, v)
	case kwHolder:
		p.holder = r.text(k, v)
	case kwLease:
		p.lease = r.text(k, v)
	case kwHeaders:
		p.headers = r.text(k, v)
	case kwPenalty:
		p.penaltyAt, p.penalty = mark{}, rawPenalty{}
		if !r.isNull(v) && r.isMapping(k, v) {
			p.penaltyAt = at(v)
			r.penalty(v, &p.penalty)
		}
	case kwReserve:
		p.reserveAt, p.reserve = mark{}, rawReserve{}
		if !r.isNull(v) && r.isMapping(k, v) {
			p.reserveAt = at(v)
			r.reserve(v, &p.reserve)
		}
	}
	return p
}

func (r *reader) reserve(n *yaml.Node, s *rawReserve) {
	r.mapping(n, inReserve, func(k string, v *yaml.Node) {
		switch k {
		case kwTTL:
			s.ttl = r.text(k, v)
		case kwEstimate:
			s.estimate = r.number(k, v)
		case kwOnExpiry:
			s.onExpiry = r.text(k, v)
		case kwEntry:
			s.entry = r.text(k, v)
		}
	})
}

func (r *reader) penalty(n *yaml.Node, p *rawPenalty) {
	r.mapping(n, inPenalty, func(k string, v *yaml.Node) {
		switch k {
		case kwFor:
			p.duration = r.text(k, v)
		case kwOn:
			p.on = r.text(k, v)
		case kwEscalate:
			p.escalate = r.number(k, v)
		case kwMax:
			p.max = r.text(k, v)
		}
	})
}
