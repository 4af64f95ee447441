package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
)

// schema is a JSON Schema or a part of one.
type schema = map[string]any

func ruleLines(string) ([]string, error) { return schemaLines(ruleschema.Schema()) }

// schemaLines converts the schema of rules to lines. The values of a key are granted; other statements about a key or its
// place are restrictions.
func schemaLines(text []byte) ([]string, error) {
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	w := &writer{}
	w.place("file", root)
	for name, place := range part(root["$defs"]) {
		if name != "ignored" {
			w.place(name, part(place))
		}
	}
	return w.lines, nil
}

type writer struct{ lines []string }

func (w *writer) grant(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

func (w *writer) restrict(format string, args ...any) { w.grant("only "+format, args...) }

// ignored reports whether a JSON Schema keyword is only for people or handled elsewhere.
func ignored(word string) bool {
	return slices.Contains([]string{"$schema", "$defs", "title", "description", "deprecated"}, word)
}

// place writes a map with its keys.
func (w *writer) place(name string, s schema) {
	rest := schema{}
	for word, v := range s {
		switch {
		case ignored(word), word == "type" && v == "object":
		case word == "properties":
			for key, s := range part(v) {
				w.key(name+"."+key, s)
			}
		default:
			rest[word] = v
		}
	}
	w.conditions(name, rest)
}

// demands separates a place from a required key in a line.
const demands = ": with "

// conditions writes a line for each leaf of a place's restrictions, so that a change affects one or two lines.
func (w *writer) conditions(where string, s schema) {
	for word, v := range s {
		switch word {
		case "allOf":
			for _, one := range items(v) {
				w.conditions(where, part(one))
			}
		case "if":
			condition := compact(v)
			w.conditions(where+" if "+condition, part(s["then"]))
			w.conditions(where+" unless "+condition, part(s["else"]))
		case "then", "else": // handled with if
		case "dependentSchemas":
			for key, one := range part(v) {
				w.conditions(where+" if "+compact(schema{"required": []any{key}}), part(one))
			}
		case "properties":
			for key, one := range part(v) {
				w.restrict("%s: %s %s", where, key, compact(one))
			}
		case "required":
			for _, key := range items(v) {
				w.restrict("%s%s%v", where, demands, key)
			}
		default:
			w.restrict("%s: %s %s", where, word, compact(v))
		}
	}
}

// key writes the values of a key.
func (w *writer) key(path string, value any) {
	s, ok := value.(schema)
	if !ok { // true or false
		w.grant("%s %v", path, value)
		return
	}
	if s["deprecated"] == true {
		w.grant("%s may be there, without effect", path)
		return
	}
	w.grant("%s", path)
	for word, v := range s {
		switch {
		case ignored(word):
		case word == "type":
			for _, t := range items(v) {
				w.grant("%s takes %v", path, t)
			}
		case word == "enum" || word == "anyOf":
			for _, one := range items(v) {
				w.grant("%s takes %s", path, compact(one))
			}
		case word == "const":
			w.grant("%s takes %s", path, compact(v))
		case word == "$ref":
			w.grant("%s takes a %s", path, strings.TrimPrefix(fmt.Sprint(v), "#/$defs/"))
		case word == "items":
			w.key(path+"[]", v)
		default:
			w.restrict("%s %s %s", path, word, compact(v))
		}
	}
}

// items returns the items of a list, or a single value as a list.
func items(v any) []any {
	if all, ok := v.([]any); ok {
		return all
	}
	return []any{v}
}

// part returns a schema within a schema. It is empty for true, false, and a missing value.
func part(v any) schema {
	s, _ := v.(schema)
	return s
}

// compact formats a part of a schema on one line.
func compact(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) //nolint:forbidigo // it came from JSON
	}
	return string(text)
}
