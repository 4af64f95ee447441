// Package ruleschema generates a JSON Schema of rule files from the grammar in package rulefile and the tables in package engine.
//
// This package is optional: the core works without it.
package ruleschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

//go:generate go test -run ^TestSchema$ . -rewrite

// schema is a JSON Schema or a part of one.
type schema map[string]any

// Schema returns a JSON Schema (2020-12) of rule files, for editors. It rejects the files that Load rejects, as far as a
// schema can express that. It reads scalars by YAML 1.2, where yes is no boolean.
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

// slug returns the name of the place's definition.
func slug(p rulefile.Place) string {
	name := strings.TrimPrefix(strings.TrimPrefix(p.String(), "an "), "a ")
	return strings.ReplaceAll(name, " ", "_")
}

func ref(p rulefile.Place) schema { return schema{"$ref": "#/$defs/" + slug(p)} }

// mapSchema returns the schema of a map: its keys, and keys that have no effect there.
func mapSchema(p rulefile.Place) schema {
	properties := schema{}
	for _, k := range rulefile.Keywords() {
		switch {
		case k.Where&p != 0:
			s := takes(k, p)
			s["description"] = k.About
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

// ignoredSchema returns the schema of values below a key without effect.
func ignoredSchema() schema {
	below := schema{}
	for _, k := range rulefile.Keywords() {
		if k.OfReference {
			below[k.Name] = ignored(k.Name)
		}
	}
	return schema{"anyOf": []schema{
		someText(),
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

// together returns the constraints between keys of a place.
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
		yes := `^([yY]|[yY]es|YES|[tT]rue|TRUE|On|ON)$` // a true key in YAML 1.1, from on
		return schema{"required": []string{rulefile.KeyFor}, "patternProperties": schema{yes: takes(*rulefile.NewGrammar()[rulefile.KeyOn][0], p)}}
	case rulefile.InReserve:
		return schema{"required": []string{rulefile.KeyEstimate}, "not": schema{"required": []string{rulefile.KeyBy, rulefile.KeyEntry}}}
	case rulefile.InEstimate:
		return schema{"required": []string{rulefile.KeyStart, rulefile.KeyMin, rulefile.KeyMax}}
	case rulefile.InRLQS, rulefile.InCalendar, rulefile.InIgnored:
	}
	return schema{}
}

// property constrains the value of a key, if present.
func property(key string, value any) schema { return schema{"properties": schema{key: value}} }

// has is the condition that a key is present with such a value.
func has(key string, value schema) schema {
	return schema{"required": []string{key}, "properties": schema{key: value}}
}

// oneOf is the condition that a key is present with one of these values.
func oneOf(key string, values ...any) schema { return has(key, schema{"enum": values}) }

// isMade is the condition that a key is present and not null.
func isMade(key string) schema { return has(key, schema{"not": schema{"type": "null"}}) }

func without(keys ...string) schema {
	none := schema{}
	for _, k := range keys {
		none[k] = false
	}
	return schema{"properties": none}
}

// keysIn returns the extension keys of rate_limit that also belong in one of these places, or all if where is 0.
func keysIn(where rulefile.Place) (keys []string) {
	for _, k := range rulefile.Keywords() {
		if !k.OfReference && k.Where&rulefile.InLimit != 0 && (where == 0 || k.Where&where != 0) {
			keys = append(keys, k.Name)
		}
	}
	return keys
}

func descriptorTogether() schema {
	depends := schema{}
	for _, k := range keysIn(rulefile.InDescriptor) {
		depends[k] = isMade(rulefile.KeyRateLimits)
	}
	star := schema{"type": "string", "pattern": `\*`}
	return schema{"required": []string{rulefile.KeyKey}, "dependentSchemas": depends, "allOf": []schema{
		{"if": isMade(rulefile.KeyRateLimits), "then": without(rulefile.KeyRateLimit)},
		{"if": isMade(rulefile.KeyPlans), "then": schema{"allOf": []schema{
			{"required": []string{rulefile.KeyPlanOf}}, without(rulefile.KeyRateLimit, rulefile.KeyRateLimits),
		}}, "else": without(rulefile.KeyPlanOf)},
		{"if": oneOf(rulefile.KeyShareThreshold, true), "then": schema{"anyOf": []schema{
			property(rulefile.KeyKey, star), has(rulefile.KeyValue, star),
		}}},
		property(rulefile.KeyLease, offAlone()),
	}}
}

// limitTogether returns the constraints between keys, algorithm, and unit of a limit.
func limitTogether(p rulefile.Place) schema {
	counts := []schema{has(rulefile.KeyUnit, knownUnit())}
	for u := descriptors.Second; u <= descriptors.Forever; u++ {
		counts = append(counts, schema{
			"if":   has(rulefile.KeyUnit, unitPattern(u)),
			"then": property(rulefile.KeyUnitMultiplier, schema{"maximum": uint64(rulefile.MaxWindow / u.Length())}),
		})
	}
	for a := range engine.Algorithms() {
		counts = append(counts, schema{"if": ofAlgorithm(a), "then": schema{"properties": under(p, a)}})
	}
	counts = append(counts, calendarTogether()...)
	counts = append(counts, schema{"if": has(rulefile.KeyUnit, unitPattern(descriptors.Forever)), "then": foreverTogether(p)})
	if p == rulefile.InItem {
		return schema{"allOf": append(counts, without(singles()...), property(rulefile.KeyUnlimited, schema{"enum": []any{false, nil}}))}
	}
	unleased := property(rulefile.KeyLease, offAlone())
	return schema{
		"if": oneOf(rulefile.KeyUnlimited, true),
		"then": schema{"allOf": []schema{
			without(keysIn(0)...), property(rulefile.KeyUnit, schema{"not": knownUnit()}),
		}},
		"else": schema{"allOf": counts},
		"dependentSchemas": schema{
			rulefile.KeyPenalty: schema{
				"if":   isMade(rulefile.KeyPenalty),
				"then": schema{"allOf": []schema{unleased, without(rulefile.KeyReserve)}},
			},
			rulefile.KeyReserve: schema{"if": isMade(rulefile.KeyReserve), "then": unleased},
			rulefile.KeyRLQS: schema{
				"if":   has(rulefile.KeyRLQS, schema{"not": schema{"enum": []any{false, nil}}}),
				"then": without(rulefile.KeyPenalty, rulefile.KeyReserve, engine.ParamFillInterval.String()),
			},
		},
	}
}

// singles returns the parameters that have no effect in a list.
func singles() (keys []string) {
	for q := range engine.Parameters() {
		if q.Single() {
			keys = append(keys, q.String())
		}
	}
	return keys
}

// ofAlgorithm is the condition that a limit has this algorithm. The first one is the default.
func ofAlgorithm(a engine.Algorithm) schema {
	if a == 0 {
		return property(rulefile.KeyAlgorithm, schema{"const": a.String()})
	}
	return oneOf(rulefile.KeyAlgorithm, a.String())
}

// under returns the constraints of a limit's keys for an algorithm.
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
		keys[rulefile.KeyRLQS] = property(rulefile.KeyMode, schema{"const": "strict"})
	}
	if a.Queues() {
		keys[rulefile.KeyHeaders] = schema{"enum": []any{rulefile.HeadersOn, true}}
	}
	return keys
}

// takes returns the schema of a key's value in a place. Only Load can check relations to other descriptors.
func takes(k rulefile.Keyword, where rulefile.Place) schema {
	items := schema{"type": "array", "items": ref(rulefile.InItem), "minItems": 1, "maxItems": rulefile.MaxItems}
	switch k.Name {
	case rulefile.KeyUnit: // accepts any text, because an unlimited rule may have an invalid unit
		return schema{"anyOf": []schema{{"enum": rulefile.UnitWords()}, someText()}}
	case rulefile.KeyRateLimits:
		items["type"] = []string{"array", "null"}
		return items
	case rulefile.KeyLease:
		return schema{"anyOf": []schema{
			{"enum": []any{"off", "auto", false}},
			{"type": "integer", "minimum": rulefile.MinLease, "maximum": rulefile.MaxLease},
			{"type": "string", "pattern": "^[0-9]+$"},
		}}
	case rulefile.KeyHeaders: // YAML 1.1 and some tools have booleans
		return schema{"enum": []any{rulefile.HeadersOn, rulefile.HeadersOff, true, false}}
	case rulefile.KeyPlans:
		return schema{
			"type": []string{"object", "null"}, "required": []string{rulefile.DefaultPlan}, "maxProperties": rulefile.MaxPlans,
			"propertyNames":        schema{"pattern": fmt.Sprintf("^[A-Za-z0-9_-]{1,%d}$", rulefile.MaxPlanName)},
			"additionalProperties": schema{"anyOf": []schema{ref(rulefile.InLimit), items}},
		}
	case rulefile.KeyQuotaGroupBy:
		return schema{"type": []string{"array", "null"}, "items": nonEmpty(), "maxItems": rulefile.MaxQuotaKeys, "uniqueItems": true}
	case rulefile.KeyName:
		if where == rulefile.InReplaces {
			return nonEmpty()
		}
	}
	s := ofKind(k)
	if k.Inner != 0 && k.Kind != rulefile.KindList {
		return schema{"anyOf": []schema{ref(k.Inner), s}}
	}
	return s
}

// ofKind returns the schema of a kind's values; for maps, the schema of null.
func ofKind(k rulefile.Keyword) schema {
	switch k.Kind {
	case rulefile.KindName:
		return nonEmpty()
	case rulefile.KindWord:
		return schema{"enum": k.Words}
	case rulefile.KindTime: // above 0, as in [descriptors.ParseSpan]
		return schema{
			"type": "string", "pattern": `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d|w))+$`,
			"examples": []string{"500ms", "30s", "5m", "24h"},
		}
	case rulefile.KindNumber:
		return schema{"type": []string{"integer", "null"}, "minimum": k.Min, "maximum": k.Max}
	case rulefile.KindFlag, rulefile.KindSwitch:
		return schema{"type": []string{"boolean", "null"}}
	case rulefile.KindMap:
		return schema{"type": "null"}
	case rulefile.KindList:
		return schema{"type": []string{"array", "null"}, "items": ref(k.Inner)}
	case rulefile.KindMetadata:
		return schema{"type": []string{"object", "null"}}
	case rulefile.KindText:
	}
	return someText()
}

// someText is the schema of a text, quoted or not; only a number with a fraction must be quoted.
func someText() schema { return schema{"type": []string{"string", "integer", "boolean", "null"}} }

func nonEmpty() schema {
	return schema{"type": []string{"string", "integer", "boolean"}, "minLength": 1}
}

func offAlone() schema { return schema{"enum": []any{rulefile.HeadersOff, false}} }

func knownUnit() schema {
	all := []schema{{"enum": rulefile.UnitWords()}}
	for u := descriptors.Second; u <= descriptors.Forever; u++ {
		all = append(all, unitPattern(u))
	}
	return schema{"anyOf": all}
}

// unitPattern matches a unit ignoring case.
func unitPattern(u descriptors.Unit) schema {
	var b strings.Builder
	for _, c := range u.String() {
		fmt.Fprintf(&b, "[%c%c]", c, unicode.ToLower(c))
	}
	return schema{"type": "string", "pattern": "^" + b.String() + "$"}
}
