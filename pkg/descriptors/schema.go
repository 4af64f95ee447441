package descriptors

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

//go:generate go test -run ^TestSchema$ . -update

// schema is a JSON Schema, or a part of one.
type schema map[string]any

// shape makes the schema of a key's value in a place. What it cannot say, such as that a value fits that of another key of
// another descriptor, only Load knows.
type shape func(where place) schema

// Schema returns a JSON Schema (2020-12) of a file of rules, for editors. It refuses what Load refuses, as far as such a
// schema can say it, and reads scalars by YAML 1.2, where yes is no boolean.
func Schema() []byte {
	defs := schema{"ignored": ignoredSchema()}
	for p := inRoot << 1; p < inIgnored; p <<= 1 {
		defs[p.slug()] = p.schema()
	}
	root := inRoot.schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Rules of ratelimitd"
	root["description"] = "A file of rules of ratelimitd or of envoyproxy/ratelimit: one domain, and a tree of descriptors."
	root["$defs"] = defs
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) //nolint:forbidigo // there are only texts, numbers, flags, lists and maps
	}
	return append(text, '\n')
}

// slug returns the name of the place's schema among the definitions.
func (p place) slug() string {
	name := strings.TrimPrefix(strings.TrimPrefix(p.String(), "an "), "a ")
	return strings.ReplaceAll(name, " ", "_")
}

func (p place) ref() schema { return schema{"$ref": "#/$defs/" + p.slug()} }

// schema returns the schema of a map: the keys that belong there, and those that have no effect there.
func (p place) schema() schema {
	properties, all := schema{}, wordings()
	for _, k := range keywords() {
		switch {
		case k.where&p != 0:
			s, w := schema{}, wordingOf(all, k.name)
			if w.takes != nil {
				s = w.takes(p)
			}
			if w.about != "" {
				s["description"] = w.about
			}
			properties[k.name] = s
		case k.ofReference:
			s := inIgnored.ignored(k.name)
			s["description"] = fmt.Sprintf("Has no effect in %s: it belongs in %s.", p, k.where&^inIgnored)
			s["deprecated"] = true
			properties[k.name] = s
		}
	}
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	maps.Copy(s, p.together())
	return s
}

// ignoredSchema is the schema of what stands below a key that has no effect where it is.
func ignoredSchema() schema {
	below := schema{}
	for _, k := range keywords() {
		if k.ofReference {
			below[k.name] = inIgnored.ignored(k.name)
		}
	}
	return schema{"anyOf": []schema{
		someText(inIgnored),
		{"type": "object", "properties": below, "additionalProperties": false},
		{"type": "array", "items": schema{"type": "object", "properties": below, "additionalProperties": false}},
	}}
}

func (p place) ignored(key string) schema {
	if key == kwMetadata {
		return schema{}
	}
	return schema{"$ref": "#/$defs/ignored"}
}

// together returns what the keys of a place say about each other.
func (p place) together() schema {
	switch p {
	case inRoot:
		return schema{"required": []string{kwDomain}}
	case inDescriptor:
		return descriptorTogether()
	case inLimit, inItem:
		return p.limitTogether()
	case inReplaces:
		return schema{"required": []string{kwName}}
	case inPenalty:
		yes := `^([yY]|[yY]es|YES|[tT]rue|TRUE|On|ON)$` // what is on by YAML 1.1, and so the key of that name
		return schema{"required": []string{kwFor}, "patternProperties": schema{yes: wordings()[kwOn].takes(p)}}
	case inReserve:
		return schema{"required": []string{kwEstimate}}
	case inIgnored:
	}
	return schema{}
}

// oneOf is a condition: a key is there and has one of these values.
func oneOf(key string, values ...any) schema {
	return schema{"required": []string{key}, "properties": schema{key: schema{"enum": values}}}
}

// isMade is a condition: a key is there, and is not null.
func isMade(key string) schema {
	return schema{"required": []string{key}, "properties": schema{key: schema{"not": schema{"type": "null"}}}}
}

func without(keys ...string) schema {
	none := schema{}
	for _, k := range keys {
		none[k] = false
	}
	return schema{"properties": none}
}

func descriptorTogether() schema {
	var policy []string
	depends := schema{}
	for _, k := range keywords() {
		if k.where&inDescriptor != 0 && k.where&inLimit != 0 {
			policy = append(policy, k.name)
			depends[k.name] = isMade(kwRateLimits)
		}
	}
	star := schema{"type": "string", "pattern": `\*`}
	rules := []schema{
		{"if": isMade(kwRateLimits), "then": without(kwRateLimit)},
		{"if": isMade(kwPlans), "then": schema{"allOf": []schema{{"required": []string{kwPlanOf}}, without(kwRateLimit, kwRateLimits)}}, "else": without(kwPlanOf)},
		{"if": oneOf(kwShareThreshold, true), "then": schema{"anyOf": []schema{
			{"properties": schema{kwKey: star}}, {"required": []string{kwValue}, "properties": schema{kwValue: star}},
		}}},
	}
	if slices.Contains(policy, kwLease) {
		rules = append(rules, schema{"properties": schema{kwLease: offAlone()}})
	}
	return schema{"required": []string{kwKey}, "dependentSchemas": depends, "allOf": rules}
}

// limitTogether says which keys go with which algorithm, unit or other key of a limit.
func (p place) limitTogether() schema {
	beyond := without(slices.Collect(OwnKeys())...)
	counts := []schema{
		{"required": []string{kwUnit}, "properties": schema{kwUnit: knownUnit()}},
	}
	for u := Second; u <= Week; u++ {
		counts = append(counts, schema{
			"if":   schema{"required": []string{kwUnit}, "properties": schema{kwUnit: unitPattern(u)}},
			"then": schema{"properties": schema{kwUnitMultiplier: schema{"maximum": uint64(maxWindow / u.Length())}}},
		})
	}
	for a := range engine.Algorithms() {
		counts = append(counts, schema{"if": ofAlgorithm(a), "then": schema{"properties": p.under(a)}})
	}
	counts = append(counts, calendarTogether()...)
	if p == inItem {
		return schema{"allOf": append(counts, without(singles()...), schema{"properties": schema{kwUnlimited: schema{"enum": []any{false, nil}}}})}
	}
	for _, k := range keywords() {
		if k.where&inDescriptor != 0 && k.where&inLimit != 0 {
			maps.Copy(beyond["properties"].(schema), without(k.name)["properties"].(schema)) //nolint:forcetypeassert // without made them
		}
	}
	maps.Copy(beyond["properties"].(schema), without(kwReserve)["properties"].(schema)) //nolint:forcetypeassert // without made them
	unit := schema{"properties": schema{kwUnit: schema{"not": knownUnit()}}}
	unleased := schema{"properties": schema{kwLease: offAlone()}}
	return schema{
		"if": oneOf(kwUnlimited, true), "then": schema{"allOf": []schema{beyond, unit}}, "else": schema{"allOf": counts},
		"dependentSchemas": schema{
			kwPenalty: schema{"if": isMade(kwPenalty), "then": schema{"allOf": []schema{unleased, without(kwReserve)}}},
			kwReserve: schema{"if": isMade(kwReserve), "then": unleased},
		},
	}
}

// singles are the parameters that mean nothing in a list.
func singles() (keys []string) {
	for q := range engine.Parameters() {
		if q.Single() {
			keys = append(keys, q.String())
		}
	}
	return keys
}

// ofAlgorithm is a condition: a limit has this algorithm. The first is that of a limit without the key.
func ofAlgorithm(a engine.Algorithm) schema {
	if a == 0 {
		return schema{"properties": schema{kwAlgorithm: schema{"const": a.String()}}}
	}
	return oneOf(kwAlgorithm, a.String())
}

// under returns what the keys of a limit may be under an algorithm.
func (p place) under(a engine.Algorithm) schema {
	keys := schema{}
	for q := range engine.Parameters() {
		if !q.TakenBy(a) {
			keys[q.String()] = false
		}
	}
	if most := a.MostHits(); most < math.MaxUint32 {
		keys[kwRequestsPerUnit] = schema{"maximum": most}
	}
	if p == inItem {
		return keys
	}
	if !a.Holds() {
		keys[kwHolder] = false
	}
	if (&engine.Limit{Algorithm: a}).Unleased() != "" {
		keys[kwLease] = offAlone()
	}
	if why := (&engine.Limit{Algorithm: a}).Unreserved(); why == a.String() {
		keys[kwReserve] = false
	}
	if a.Queues() {
		keys[kwHeaders] = schema{"enum": []any{headersOn, true}}
	}
	return keys
}

// someText is text as it is written; a number with a fraction has to be quoted.
func someText(place) schema { return schema{"type": []string{"string", "integer", "boolean", "null"}} }

func nonEmpty(place) schema {
	return schema{"type": []string{"string", "integer", "boolean"}, "minLength": 1}
}

func nameIn(where place) schema {
	if where == inReplaces {
		return nonEmpty(where)
	}
	return someText(where)
}

func someFlag(place) schema { return schema{"type": []string{"boolean", "null"}} }

func numberFrom(least, most uint64) shape {
	return func(place) schema {
		return schema{"type": []string{"integer", "null"}, "minimum": least, "maximum": most}
	}
}

func words(all ...string) shape {
	return func(place) schema { return schema{"enum": all} }
}

// onOff is what YAML 1.1 has as a boolean, and so do some tools.
func onOff(place) schema { return schema{"enum": []any{headersOn, headersOff, true, false}} }

func offAlone() schema { return schema{"enum": []any{headersOff, false}} }

// someTime is a time above 0 as [ParseSpan] reads it.
func someTime(place) schema {
	return schema{"type": "string", "pattern": `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d|w))+$`, "examples": []string{"500ms", "30s", "5m", "24h"}}
}

func anyMap(place) schema { return schema{"type": []string{"object", "null"}} }

func mapOf(what place) shape {
	return func(place) schema { return schema{"anyOf": []schema{what.ref(), {"type": "null"}}} }
}

func listOf(what place) shape {
	return func(place) schema { return schema{"type": []string{"array", "null"}, "items": what.ref()} }
}

func itemList(place) schema {
	return schema{"type": []string{"array", "null"}, "items": inItem.ref(), "minItems": 1, "maxItems": maxItems}
}

func plansShape(place) schema {
	return schema{
		"type": []string{"object", "null"}, "required": []string{DefaultPlan}, "maxProperties": maxPlans,
		"propertyNames":        schema{"pattern": fmt.Sprintf("^[A-Za-z0-9_-]{1,%d}$", maxPlanName)},
		"additionalProperties": schema{"anyOf": []schema{inLimit.ref(), {"type": "array", "items": inItem.ref(), "minItems": 1, "maxItems": maxItems}}},
	}
}

func quotaKeys(where place) schema {
	return schema{"type": []string{"array", "null"}, "items": nonEmpty(where), "maxItems": MaxQuotaKeys, "uniqueItems": true}
}

func leaseShape(place) schema {
	return schema{"anyOf": []schema{
		{"enum": []any{"off", "auto", false}}, {"type": "integer", "minimum": minLease, "maximum": maxLease}, {"type": "string", "pattern": "^[0-9]+$"},
	}}
}

// unitText names the units, and lets any text pass: an unlimited rule may have one that is none.
func unitText(where place) schema {
	return schema{"anyOf": []schema{{"enum": unitWords()}, someText(where)}}
}

func unitWords() (all []string) {
	for u := Second; u <= Week; u++ {
		all = append(all, strings.ToLower(u.String()))
	}
	return all
}

func knownUnit() schema {
	all := []schema{{"enum": unitWords()}}
	for u := Second; u <= Week; u++ {
		all = append(all, unitPattern(u))
	}
	return schema{"anyOf": all}
}

// unitPattern matches the unit in upper and lower case.
func unitPattern(u Unit) schema {
	var b strings.Builder
	for _, c := range u.String() {
		fmt.Fprintf(&b, "[%c%c]", c, unicode.ToLower(c))
	}
	return schema{"type": "string", "pattern": "^" + b.String() + "$"}
}

func algorithmShape(where place) schema {
	var names []string
	for a := range engine.Algorithms() {
		names = append(names, a.String())
	}
	return words(names...)(where)
}

func parameterShape(p engine.Parameter) shape {
	switch p.Kind() {
	case engine.KindTime:
		return someTime
	case engine.KindFlag:
		return someFlag
	case engine.KindWord:
		return words(p.Words()...)
	case engine.KindZone:
		return nonEmpty
	case engine.KindNumber:
	}
	return numberFrom(p.Bounds())
}
