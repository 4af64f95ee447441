package rulefile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"gopkg.in/yaml.v3"
)

// What comes as values rather than as text, such as from a control plane, becomes the nodes that a parser would have made of the
// same rules in a file, and is read like these. Nothing of it has a line.

// nowhere is the line of what has none, but is present.
const nowhere = -1

// Value returns a text, a flag, a number, nil, or a []any or map[string]any of these, as a node.
func Value(v any) *yaml.Node {
	switch v := v.(type) {
	case map[string]any:
		n := Map()
		for _, k := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, Value(k), Value(v[k]))
		}
		return n
	case []any:
		n := List()
		for _, item := range v {
			n.Content = append(n.Content, Value(item))
		}
		return n
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: v, Line: nowhere}
	case nil:
		return plainNode("null")
	case float64:
		return plainNode(spelled(v))
	}
	return plainNode(fmt.Sprint(v))
}

// Map returns a map without keys.
func Map() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: nowhere} }

// List returns an empty list.
func List() *yaml.Node { return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: nowhere} }

func plainNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: text, Line: nowhere}
}

// spelled returns a number as YAML spells it.
func spelled(f float64) string {
	switch {
	case math.IsNaN(f):
		return ".nan"
	case math.IsInf(f, 1):
		return ".inf"
	case math.IsInf(f, -1):
		return "-.inf"
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}
