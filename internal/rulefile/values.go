package rulefile

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// tagged resolves a scalar. It reports an error and returns false if the node has an explicit tag that is invalid or does not match its
// text.
func (r *Reader) tagged(n *yaml.Node) (scalar, bool) {
	t := Target(n)
	s := resolve(t)
	if !r.plainTag(t) {
		return s, false
	}
	if tag := t.Tag; t.Style&yaml.TaggedStyle != 0 && tag != "!!str" && tag != s.kind.String() {
		r.Fail(At(n), r.Path(), "error loading config file: yaml: cannot decode %s `%s` as a %s", s.kind, plain.Shorten(t.Value), tag)
		return s, false
	}
	return s, true
}

// Accepted values of a key, for messages.
const (
	wantFlag   = "want true or false"
	wantQuotes = "put it in quotes to use it as text"
)

// scalar resolves a scalar outside of metadata. Floating-point numbers are errors, and want describes the accepted values; if want is
// empty, they are accepted.
func (r *Reader) scalar(n *yaml.Node, want string) (scalar, bool) {
	s, ok := r.tagged(n)
	if ok && s.kind == kindFloat && want != "" {
		r.Fail(At(n), r.Path(), "error checking config: the number %s has a fraction or is too large: %s", plain.Shorten(Target(n).Value), want)
		return s, false
	}
	return s, ok
}

// Text reads a scalar as written; null is the empty string. Extension keys, except holder, take words or times, which are validated
// later; so Text accepts fractions, because the later error describes the accepted values.
func (r *Reader) Text(k *Keyword, n *yaml.Node) Text {
	t := Target(n)
	out := Text{At: At(n), Broken: true}
	if t.Kind != yaml.ScalarNode {
		r.Fail(At(n), r.Path(), "error loading config file: cannot unmarshal %s into %s: want text", describe(n), k.Name)
		return out
	}
	want := wantQuotes
	switch {
	case k.Name == KeyUnit:
		want = "want " + UnitNames
	case k.Name != KeyHolder && !k.OfReference:
		want = ""
	}
	s, ok := r.scalar(n, want)
	if !ok {
		return out
	}
	switch {
	case s.kind == kindNull:
	case s.kind == kindBool && slices.Contains(k.Words, HeadersOff): // tools of YAML 1.1 write on and off as true and false
		out.Value = map[bool]string{true: HeadersOn, false: HeadersOff}[s.truth]
	default:
		out.Value = t.Value
	}
	out.Broken = false
	return out
}

// texts reads a list of texts. Null means absent.
func (r *Reader) texts(k *Keyword, n *yaml.Node) (out []Text, where Mark) {
	if r.IsNull(n) {
		return nil, Mark{}
	}
	if Target(n).Kind != yaml.SequenceNode {
		r.Fail(At(n), r.Path(), "error loading config file: cannot unmarshal %s into %s: want a list of strings", describe(n), k.Name)
		return nil, Mark{}
	}
	m, ok := r.enter(n)
	if !ok {
		return nil, Mark{}
	}
	defer r.leave(n)
	for _, item := range m.Content {
		out = append(out, r.Text(k, item))
	}
	return out, At(n)
}

// flag reads a boolean, 1 for true. Null means absent.
func (r *Reader) flag(k *Keyword, n *yaml.Node) (on uint64, where Mark) {
	want := wantFlag
	if k.Inner != 0 {
		want += ", or a map"
	}
	if Target(n).Kind == yaml.ScalarNode {
		switch s, ok := r.scalar(n, want); {
		case !ok || s.kind == kindNull:
			return 0, Mark{}
		case s.kind == kindBool && s.truth:
			return 1, At(n)
		case s.kind == kindBool:
			return 0, At(n)
		}
	}
	r.Fail(At(n), r.Path(), "error loading config file: cannot unmarshal %s into %s: %s", describe(n), k.Name, want)
	return 0, Mark{}
}

// number reads an unsigned 32-bit integer, or a larger one if k takes it. Null means absent.
func (r *Reader) number(k *Keyword, n *yaml.Node) (number uint64, where Mark) {
	most := max(k.Max, math.MaxUint32) // narrower bounds are validated later
	want := "want a whole number from 0 to " + strconv.FormatUint(most, 10)
	if Target(n).Kind == yaml.ScalarNode {
		s, ok := r.scalar(n, want)
		switch {
		case !ok || s.kind == kindNull:
			return 0, Mark{}
		case s.kind == kindInt && s.int >= 0 && uint64(s.int) <= most:
			r.octal(k.Name, n, s.int)
			return uint64(s.int), At(n)
		case s.kind == kindString && resolvePlain(Target(n).Value).kind == kindInt:
			want += ", without quotes"
		}
	}
	r.Fail(At(n), r.Path(), "error loading config file: cannot unmarshal %s into %s: %s", describe(n), k.Name, want)
	return 0, Mark{}
}

// octal warns about a number such as 010, which is 8 in YAML 1.1 but 10 to most people.
func (r *Reader) octal(k string, n *yaml.Node, means int64) {
	text := Target(n).Value
	decimal, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err == nil && decimal != means {
		r.Warn(At(n), r.Path(), "%s %s is %d: a number that begins with 0 is octal; write %d or %d", k, plain.Shorten(text), means, decimal, means)
	}
}

// metadata reads a map of arbitrary values in the form expected by structpb.NewStruct: numbers become float64.
func (r *Reader) metadata(n *yaml.Node) map[string]any {
	if r.IsNull(n) || !r.isMapping(KeyMetadata, n) {
		return nil
	}
	out := map[string]any{}
	r.metadataMap(n, out, MaxMetadataDepth)
	return out
}

// metadataMap reads the keys of a map into out.
func (r *Reader) metadataMap(n *yaml.Node, out map[string]any, depth int) {
	written := map[string]bool{}
	r.pairs(n, false, func(p pair) {
		key := Target(p.key)
		if key.Kind != yaml.ScalarNode || !r.plainTag(key) {
			r.Fail(At(key), r.Path(), "error parsing metadata: a key is %s: want text", brief(key))
			return
		}
		if written[key.Value] && !p.merged {
			r.Warn(At(key), r.Path(), "key '%s' is repeated: the last one wins", plain.Shorten(key.Value))
		}
		written[key.Value] = written[key.Value] || !p.merged
		out[key.Value] = r.metadataValue(p.value, depth-1)
	})
}

func (r *Reader) metadataValue(n *yaml.Node, depth int) any { //nolint:ireturn // metadata is anything
	t := Target(n)
	if t.Kind == yaml.ScalarNode {
		return r.metadataScalar(n)
	}
	if depth <= 0 {
		r.Fail(At(n), r.Path(), "error parsing metadata: it is nested more than %d deep", MaxMetadataDepth)
		return nil
	}
	if t.Kind == yaml.MappingNode {
		out := map[string]any{}
		r.metadataMap(n, out, depth)
		return out
	}
	m, ok := r.enter(n)
	if !ok {
		return nil
	}
	defer r.leave(n)
	out := make([]any, len(m.Content))
	for i, item := range m.Content {
		out[i] = r.metadataValue(item, depth-1)
	}
	return out
}

func (r *Reader) metadataScalar(n *yaml.Node) any { //nolint:ireturn // metadata is anything
	s, ok := r.tagged(n)
	if !ok {
		return nil
	}
	switch s.kind {
	case kindNull:
		return nil
	case kindBool:
		return s.truth
	case kindInt:
		return float64(s.int)
	case kindFloat:
		if math.IsNaN(s.float) || math.IsInf(s.float, 0) {
			r.Fail(At(n), r.Path(),
				"error parsing metadata: %s: JSON, the format of /json, has no such number; quote it to use it as text", brief(n))
			return nil
		}
		return s.float
	case kindString:
	}
	return Target(n).Value
}
