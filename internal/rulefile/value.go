package rulefile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"gopkg.in/yaml.v3"
)

// Rules from a control plane arrive as values rather than text. They are converted to the nodes that a parser would create for the same
// rules in a file, and then read like these. They have no lines.

// nowhere is the line of a node that is present but has no position.
const nowhere = -1

// Value converts a text, a flag, a number, nil, or a []any or map[string]any of these to a node.
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

// Map returns an empty map.
func Map() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: nowhere} }

// List returns an empty list.
func List() *yaml.Node { return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: nowhere} }

// plainNode returns an unquoted scalar.
func plainNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: text, Line: nowhere}
}

// spelled formats a number in YAML.
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
