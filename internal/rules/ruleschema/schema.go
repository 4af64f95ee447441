// Package ruleschema makes a JSON Schema of files of rules from the grammar of package rulefile and the tables of package engine.
//
// This package is optional: the core works without it.
package ruleschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

//go:generate go test -run ^TestSchema$ . -update

// schema is a JSON Schema, or a part of one.
type schema map[string]any

// shape makes the schema of a key's value in a place. What it cannot say, such as that a value fits that of another key of
// another descriptor, only Load knows.
type shape func(where rulefile.Place) schema

// Schema returns a JSON Schema (2020-12) of a file of rules, for editors. It rejects what Load rejects, as far as such a
// schema can say it, and reads scalars by YAML 1.2, where yes is no boolean.
func Schema() []byte {
	defs := schema{"ignored": ignoredSchema()}
	for p := rulefile.InRoot << 1; p < rulefile.InIgnored; p <<= 1 {
		defs[slug(p)] = mapSchema(p)
	}
	root := mapSchema(rulefile.InRoot)
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
func slug(p rulefile.Place) string {
	name := strings.TrimPrefix(strings.TrimPrefix(p.String(), "an "), "a ")
	return strings.ReplaceAll(name, " ", "_")
}

func ref(p rulefile.Place) schema { return schema{"$ref": "#/$defs/" + slug(p)} }

// mapSchema returns the schema of a map: the keys that belong there, and those that have no effect there.
func mapSchema(p rulefile.Place) schema {
	properties, all := schema{}, wordings()
	for _, k := range rulefile.Keywords() {
		switch {
		case k.Where&p != 0:
			s, w := schema{}, wordingOf(all, k.Name)
			if w.takes != nil {
				s = w.takes(p)
			}
			if w.about != "" {
				s["description"] = w.about
			}
			properties[k.Name] = s
		case k.OfReference:
			s := ignored(k.Name)
			s["description"] = fmt.Sprintf("Has no effect in %s: it belongs in %s.", p, k.Where&^rulefile.InIgnored)
			s["deprecated"] = true
			properties[k.Name] = s
		}
	}
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	maps.Copy(s, together(p))
	return s
}

// ignoredSchema is the schema of what stands below a key that has no effect where it is.
func ignoredSchema() schema {
	below := schema{}
	for _, k := range rulefile.Keywords() {
		if k.OfReference {
			below[k.Name] = ignored(k.Name)
		}
	}
	return schema{"anyOf": []schema{
		someText(rulefile.InIgnored),
		{"type": "object", "properties": below, "additionalProperties": false},
		{"type": "array", "items": schema{"type": "object", "properties": below, "additionalProperties": false}},
	}}
}

func ignored(key string) schema {
	if key == rulefile.KeyMetadata {
		return schema{}
	}
	return schema{"$ref": "#/$defs/ignored"}
}

// together returns what the keys of a place say about each other.
func together(p rulefile.Place) schema {
	switch p {
	case rulefile.InRoot:
		return schema{"required": []string{rulefile.KeyDomain}}
	case rulefile.InDescriptor:
		return descriptorTogether()
	case rulefile.InLimit, rulefile.InItem:
		return limitTogether(p)
	case rulefile.InReplaces:
		return schema{"required": []string{rulefile.KeyName}}
	case rulefile.InPenalty:
		yes := `^([yY]|[yY]es|YES|[tT]rue|TRUE|On|ON)$` // what is on by YAML 1.1, and so the key of that name
		return schema{"required": []string{rulefile.KeyFor}, "patternProperties": schema{yes: wordings()[rulefile.KeyOn].takes(p)}}
	case rulefile.InReserve:
		return schema{"required": []string{rulefile.KeyEstimate}, "not": schema{"required": []string{rulefile.KeyBy, rulefile.KeyEntry}}}
	case rulefile.InRLQS, rulefile.InCalendar, rulefile.InIgnored:
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

// isDivided is a condition: rlqs is there, and is neither false nor null.
func isDivided() schema {
	return schema{"required": []string{rulefile.KeyRLQS}, "properties": schema{rulefile.KeyRLQS: schema{"not": schema{"enum": []any{false, nil}}}}}
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
	for _, k := range rulefile.Keywords() {
		if k.Where&rulefile.InDescriptor != 0 && k.Where&rulefile.InLimit != 0 {
			policy = append(policy, k.Name)
			depends[k.Name] = isMade(rulefile.KeyRateLimits)
		}
	}
	star := schema{"type": "string", "pattern": `\*`}
	rules := []schema{
		{"if": isMade(rulefile.KeyRateLimits), "then": without(rulefile.KeyRateLimit)},
		{"if": isMade(rulefile.KeyPlans), "then": schema{"allOf": []schema{{"required": []string{rulefile.KeyPlanOf}}, without(rulefile.KeyRateLimit, rulefile.KeyRateLimits)}}, "else": without(rulefile.KeyPlanOf)},
		{"if": oneOf(rulefile.KeyShareThreshold, true), "then": schema{"anyOf": []schema{
			{"properties": schema{rulefile.KeyKey: star}}, {"required": []string{rulefile.KeyValue}, "properties": schema{rulefile.KeyValue: star}},
		}}},
	}
	if slices.Contains(policy, rulefile.KeyLease) {
		rules = append(rules, schema{"properties": schema{rulefile.KeyLease: offAlone()}})
	}
	return schema{"required": []string{rulefile.KeyKey}, "dependentSchemas": depends, "allOf": rules}
}

// limitTogether says which keys go with which algorithm, unit or other key of a limit.
func limitTogether(p rulefile.Place) schema {
	beyond := without(slices.Collect(rulefile.OwnKeys())...)
	counts := []schema{
		{"required": []string{rulefile.KeyUnit}, "properties": schema{rulefile.KeyUnit: knownUnit()}},
	}
	for u := descriptors.Second; u <= descriptors.Week; u++ {
		counts = append(counts, schema{
			"if":   schema{"required": []string{rulefile.KeyUnit}, "properties": schema{rulefile.KeyUnit: unitPattern(u)}},
			"then": schema{"properties": schema{rulefile.KeyUnitMultiplier: schema{"maximum": uint64(rulefile.MaxWindow / u.Length())}}},
		})
	}
	for a := range engine.Algorithms() {
		counts = append(counts, schema{"if": ofAlgorithm(a), "then": schema{"properties": under(p, a)}})
	}
	counts = append(counts, calendarTogether()...)
	if p == rulefile.InItem {
		return schema{"allOf": append(counts, without(singles()...), schema{"properties": schema{rulefile.KeyUnlimited: schema{"enum": []any{false, nil}}}})}
	}
	for _, k := range rulefile.Keywords() {
		if k.Where&rulefile.InDescriptor != 0 && k.Where&rulefile.InLimit != 0 {
			maps.Copy(beyond["properties"].(schema), without(k.Name)["properties"].(schema)) //nolint:forcetypeassert // without made them
		}
	}
	maps.Copy(beyond["properties"].(schema), without(rulefile.KeyReserve, rulefile.KeyRLQS)["properties"].(schema)) //nolint:forcetypeassert // without made them
	unit := schema{"properties": schema{rulefile.KeyUnit: schema{"not": knownUnit()}}}
	unleased := schema{"properties": schema{rulefile.KeyLease: offAlone()}}
	return schema{
		"if": oneOf(rulefile.KeyUnlimited, true), "then": schema{"allOf": []schema{beyond, unit}}, "else": schema{"allOf": counts},
		"dependentSchemas": schema{
			rulefile.KeyPenalty: schema{"if": isMade(rulefile.KeyPenalty), "then": schema{"allOf": []schema{unleased, without(rulefile.KeyReserve)}}},
			rulefile.KeyReserve: schema{"if": isMade(rulefile.KeyReserve), "then": unleased},
			rulefile.KeyRLQS:    schema{"if": isDivided(), "then": without(rulefile.KeyPenalty, rulefile.KeyReserve, engine.ParamFillInterval.String())},
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
		return schema{"properties": schema{rulefile.KeyAlgorithm: schema{"const": a.String()}}}
	}
	return oneOf(rulefile.KeyAlgorithm, a.String())
}

// under returns what the keys of a limit may be under an algorithm.
func under(p rulefile.Place, a engine.Algorithm) schema {
	keys := schema{}
	for q := range engine.Parameters() {
		if !q.TakenBy(a) {
			keys[q.String()] = false
		}
	}
	if most := a.MostHits(); most < engine.MaxLimit {
		keys[rulefile.KeyRequestsPerUnit] = schema{"maximum": most}
	}
	if p == rulefile.InItem {
		return keys
	}
	if !a.Holds() {
		keys[rulefile.KeyHolder] = false
	}
	if (&engine.Limit{Algorithm: a}).Unleased() != "" {
		keys[rulefile.KeyLease] = offAlone()
	}
	if why := (&engine.Limit{Algorithm: a}).Unreserved(); why == a.String() {
		keys[rulefile.KeyReserve] = false
	}
	if why := (&engine.Limit{Algorithm: a}).Undivided(); why == a.String() {
		keys[rulefile.KeyRLQS] = schema{"enum": []any{false, nil}}
	}
	if a == engine.FixedWindow {
		keys[rulefile.KeyRLQS] = schema{"properties": schema{rulefile.KeyMode: schema{"const": "strict"}}}
	}
	if a.Queues() {
		keys[rulefile.KeyHeaders] = schema{"enum": []any{rulefile.HeadersOn, true}}
	}
	return keys
}

// someText is text as it is written; a number with a fraction has to be quoted.
func someText(rulefile.Place) schema {
	return schema{"type": []string{"string", "integer", "boolean", "null"}}
}

func nonEmpty(rulefile.Place) schema {
	return schema{"type": []string{"string", "integer", "boolean"}, "minLength": 1}
}

func nameIn(where rulefile.Place) schema {
	if where == rulefile.InReplaces {
		return nonEmpty(where)
	}
	return someText(where)
}

func someFlag(rulefile.Place) schema { return schema{"type": []string{"boolean", "null"}} }

func numberFrom(least, most uint64) shape {
	return func(rulefile.Place) schema {
		return schema{"type": []string{"integer", "null"}, "minimum": least, "maximum": most}
	}
}

func words(all ...string) shape {
	return func(rulefile.Place) schema { return schema{"enum": all} }
}

// onOff is what YAML 1.1 has as a boolean, and so do some tools.
func onOff(rulefile.Place) schema {
	return schema{"enum": []any{rulefile.HeadersOn, rulefile.HeadersOff, true, false}}
}

func offAlone() schema { return schema{"enum": []any{rulefile.HeadersOff, false}} }

// someTime is a time above 0 as [descriptors.ParseSpan] reads it.
func someTime(rulefile.Place) schema {
	return schema{"type": "string", "pattern": `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d|w))+$`, "examples": []string{"500ms", "30s", "5m", "24h"}}
}

func anyMap(rulefile.Place) schema { return schema{"type": []string{"object", "null"}} }

func mapOf(what rulefile.Place) shape {
	return func(rulefile.Place) schema { return schema{"anyOf": []schema{ref(what), {"type": "null"}}} }
}

// rlqsShape is a flag, or a map.
func rlqsShape(rulefile.Place) schema {
	return schema{"anyOf": []schema{ref(rulefile.InRLQS), {"type": []string{"boolean", "null"}}}}
}

func listOf(what rulefile.Place) shape {
	return func(rulefile.Place) schema { return schema{"type": []string{"array", "null"}, "items": ref(what)} }
}

func itemList(rulefile.Place) schema {
	return schema{"type": []string{"array", "null"}, "items": ref(rulefile.InItem), "minItems": 1, "maxItems": rulefile.MaxItems}
}

func plansShape(rulefile.Place) schema {
	return schema{
		"type": []string{"object", "null"}, "required": []string{rulefile.DefaultPlan}, "maxProperties": rulefile.MaxPlans,
		"propertyNames":        schema{"pattern": fmt.Sprintf("^[A-Za-z0-9_-]{1,%d}$", rulefile.MaxPlanName)},
		"additionalProperties": schema{"anyOf": []schema{ref(rulefile.InLimit), {"type": "array", "items": ref(rulefile.InItem), "minItems": 1, "maxItems": rulefile.MaxItems}}},
	}
}

func quotaKeys(where rulefile.Place) schema {
	return schema{"type": []string{"array", "null"}, "items": nonEmpty(where), "maxItems": rulefile.MaxQuotaKeys, "uniqueItems": true}
}

func leaseShape(rulefile.Place) schema {
	return schema{"anyOf": []schema{
		{"enum": []any{"off", "auto", false}}, {"type": "integer", "minimum": rulefile.MinLease, "maximum": rulefile.MaxLease}, {"type": "string", "pattern": "^[0-9]+$"},
	}}
}

// unitText names the units, and lets any text pass: an unlimited rule may have one that is none.
func unitText(where rulefile.Place) schema {
	return schema{"anyOf": []schema{{"enum": rulefile.UnitWords()}, someText(where)}}
}

func knownUnit() schema {
	all := []schema{{"enum": rulefile.UnitWords()}}
	for u := descriptors.Second; u <= descriptors.Week; u++ {
		all = append(all, unitPattern(u))
	}
	return schema{"anyOf": all}
}

// unitPattern matches the unit in upper and lower case.
func unitPattern(u descriptors.Unit) schema {
	var b strings.Builder
	for _, c := range u.String() {
		fmt.Fprintf(&b, "[%c%c]", c, unicode.ToLower(c))
	}
	return schema{"type": "string", "pattern": "^" + b.String() + "$"}
}

func algorithmShape(where rulefile.Place) schema {
	var names []string
	for a := range engine.Algorithms() {
		names = append(names, a.String())
	}
	return words(names...)(where)
}

func parameterShape(p engine.Parameter) shape {
	if takes := calendarShape(p); takes != nil {
		return takes
	}
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
