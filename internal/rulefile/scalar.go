package rulefile

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// kind is the type of a scalar in YAML 1.1, which the reference's parser follows: yes, no, on and off are booleans, 010 is octal, and
// underscores in numbers are skipped. yaml.v3 follows YAML 1.2, so its tags are not used.
type kind uint8

const (
	kindString kind = iota
	kindNull
	kindBool
	kindInt
	kindFloat // or an integer that does not fit a signed 64-bit number
)

// String returns the tag of the kind.
func (k kind) String() string {
	return [...]string{"!!str", "!!null", "!!bool", "!!int", "!!float"}[k]
}

// scalar is a resolved scalar. The text of a string is in the node.
type scalar struct {
	kind  kind
	truth bool
	int   int64
	float float64
}

// yamlFloat matches floating-point numbers of YAML 1.1.
var yamlFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

// resolve determines the type and value of a scalar node. plainTag rejects explicit tags outside of YAML's core schema.
func resolve(n *yaml.Node) scalar {
	if n.Style&yaml.TaggedStyle != 0 && n.Tag == "!!str" {
		return scalar{}
	}
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 && n.Style&yaml.TaggedStyle == 0 {
		return scalar{}
	}
	s := resolvePlain(n.Value)
	if n.Style&yaml.TaggedStyle != 0 && n.Tag == "!!float" && s.kind == kindInt {
		s.kind, s.float = kindFloat, float64(s.int)
	}
	return s
}

// resolvePlain resolves an unquoted scalar.
func resolvePlain(text string) scalar {
	if text == "" {
		return scalar{kind: kindNull}
	}
	switch c := text[0]; {
	case c >= '0' && c <= '9', c == '+', c == '-', c == '.':
		return resolveNumber(text)
	case strings.IndexByte("~nNyYtTfFoO", c) < 0:
		return scalar{}
	}
	switch text {
	case "~", "null", "Null", "NULL":
		return scalar{kind: kindNull}
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return scalar{kind: kindBool, truth: true}
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return scalar{kind: kindBool}
	}
	return scalar{}
}

// resolveNumber resolves an unquoted scalar that begins like a number.
func resolveNumber(text string) scalar {
	switch text {
	case ".nan", ".NaN", ".NAN":
		return scalar{kind: kindFloat, float: math.NaN()}
	case ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF":
		return scalar{kind: kindFloat, float: math.Inf(1)}
	case "-.inf", "-.Inf", "-.INF":
		return scalar{kind: kindFloat, float: math.Inf(-1)}
	}
	plain := text
	if text[0] != '.' {
		plain = strings.ReplaceAll(text, "_", "")
		if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
			return scalar{kind: kindInt, int: i}
		}
		if u, err := strconv.ParseUint(plain, 0, 64); err == nil {
			return scalar{kind: kindFloat, float: float64(u)}
		}
	}
	if yamlFloat.MatchString(plain) {
		// Out of range means a string, as in the reference.
		if f, err := strconv.ParseFloat(plain, 64); err == nil {
			return scalar{kind: kindFloat, float: f}
		}
	}
	return scalar{}
}
