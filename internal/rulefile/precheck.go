package rulefile

import (
	"bytes"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// The parser builds a node of some hundred bytes for every value of a file before anything can be said about it. So a
// precheck of the text comes first, which takes no memory: it counts what will become nodes, and stops at a file that has
// far more of them than its rules can need. It knows as much of YAML as it takes to find keys, lists and maps. What it
// counts may be wrong by a few, which is why its bounds are wide.

// Bounds on what a precheck counts.
const (
	maxValues     = 2_500_000 // keys, values, maps and lists
	maxBeside     = 100_000   // of them, those that are not where rules have any: see precheck.beside
	besidePerRule = 8         // as many more for each descriptor, mainly for its metadata
	maxMapKeys    = 12        // keys of rules for each map, on average
)

// precheck counts what a text consists of.
type precheck struct {
	grammar Grammar
	text    []byte
	i       int   // the next byte
	line    int32 // of it
	start   int   // the first byte of the line

	values int
	maps   int // items of lists, and maps in braces, where rules have them; each has a key
	keys   int // keys of rules
	rules  int // keys that begin a descriptor
	beside int // values that are no maps in lists; unknown keys; and what is below these, metadata, or keys that take one value

	flow   []byte // the brackets that are open
	item   bool   // what comes next is an item of a list
	owed   bool   // what comes next is the value of a key, which has been counted with it
	indent int    // of the key or the item that was read last in the line
	region region
}

// region is a part of the text in which everything counts as beside the rules.
type region struct {
	key    string // whose value it is; empty outside
	at     Mark
	indent int // of the key; deeper lines belong to it
	depth  int // how many brackets are open around it
}

// prechecked reports whether the text has no more values than its rules can need, and reports an error if it has.
func (r *Reader) prechecked(text []byte) bool {
	s := precheck{grammar: r.Grammar, text: bytes.TrimPrefix(text, []byte("\ufeff"))}
	for s.i < len(s.text) {
		s.line++
		s.start = s.i
		s.readLine()
		if s.values > maxValues {
			r.Fail(Mark{s.line, 1},
				"", "error loading config file: more than %d keys and values up to here: want fewer, so that they fit into memory", maxValues)
			return false
		}
		if s.excessive() {
			s.tooMuch(r)
			return false
		}
	}
	return true
}

func (s *precheck) tooMuch(r *Reader) {
	const want = "want a file of rules, with at most %d values beside them, and %d more for each descriptor"
	if k := s.region.key; k != "" {
		r.Fail(s.region.at,
			"", "error loading config file: the list or map under '%s' is too large: "+want, plain.Shorten(k), maxBeside, besidePerRule)
		return
	}
	r.Fail(Mark{s.line, 1},
		"", "error loading config file: too many values that belong to no rule up to here: "+want, maxBeside, besidePerRule)
}

// readLine reads up to the end of the line, or to the end of a text that goes over several.
func (s *precheck) readLine() {
	if len(s.flow) == 0 {
		s.skipSpaces()
		s.indent, s.item, s.owed = s.i-s.start, false, false
		if !s.ended() {
			s.leave(s.indent)
		}
	}
	for {
		s.skipSpaces()
		if s.ended() {
			s.endLine()
			return
		}
		s.token()
	}
}

// ended reports whether a comment or the end of the line comes next.
func (s *precheck) ended() bool {
	return s.i >= len(s.text) || s.text[s.i] == '\n' || s.text[s.i] == '#' && (s.i == s.start || blank(s.text[s.i-1]))
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func (s *precheck) skipSpaces() {
	for s.i < len(s.text) && s.text[s.i] != '\n' && blank(s.text[s.i]) {
		s.i++
	}
}

// endLine goes to the beginning of the next line.
func (s *precheck) endLine() {
	if n := bytes.IndexByte(s.text[s.i:], '\n'); n >= 0 {
		s.i += n + 1
		return
	}
	s.i = len(s.text)
}

// leave ends a region at a line that does not belong to it.
func (s *precheck) leave(indent int) {
	if s.region.key == "" || s.region.depth > 0 || indent > s.region.indent {
		return
	}
	if indent == s.region.indent && s.dash() { // the items of a list may be as deep as their key
		return
	}
	s.region = region{}
}

// dash reports whether an item of a list begins here.
func (s *precheck) dash() bool { return s.text[s.i] == '-' && s.followed() }

// followed reports whether a blank or the end follows the next byte.
func (s *precheck) followed() bool { return s.i+1 >= len(s.text) || blank(s.text[s.i+1]) }

// token reads what comes next in a line.
func (s *precheck) token() {
	switch c := s.text[s.i]; {
	case len(s.flow) == 0 && (s.dash() || c == '?' && s.followed()):
		s.indent, s.item = s.i-s.start, true
		s.addMap()
		s.i++
	case c == '[' || c == '{':
		s.flow = append(s.flow, c)
		s.item = c == '['
		if c == '{' {
			s.addMap()
		} else {
			s.add()
		}
		s.i++
	case len(s.flow) > 0 && (c == ']' || c == '}'):
		s.flow = s.flow[:len(s.flow)-1]
		if s.region.depth > len(s.flow) {
			s.region = region{}
		}
		s.item = false
		s.i++
	case len(s.flow) > 0 && c == ',':
		s.item = s.flow[len(s.flow)-1] == '['
		s.i++
	case c == '&' || c == '!':
		s.word()
	case len(s.flow) == 0 && (c == '|' || c == '>'):
		s.add()
		s.literal()
	default:
		s.scalar()
	}
}

// add counts a value, also as beside the rules if it is, unless it was counted with its key.
func (s *precheck) add() {
	if s.owed {
		s.owed = false
		return
	}
	s.values++
	if s.region.key != "" {
		s.beside++
	}
}

// addMap counts a map.
func (s *precheck) addMap() {
	s.add()
	if s.region.key == "" {
		s.maps++
	}
}

// excessive reports whether there is more beside the rules than they can need.
func (s *precheck) excessive() bool {
	return s.beside > maxBeside+besidePerRule*s.rules || s.keys > maxBeside+maxMapKeys*s.maps || s.maps > maxBeside+2*s.keys
}

// word goes to the next blank or, in brackets, to what ends a value.
func (s *precheck) word() {
	for s.i < len(s.text) && !blank(s.text[s.i]) && (len(s.flow) == 0 || bytes.IndexByte([]byte(",[]{}"), s.text[s.i]) < 0) {
		s.i++
	}
}

// literal goes to the end of the last line of a text that begins with | or >: the line before the next one that is not
// deeper than its key.
func (s *precheck) literal() {
	for s.endLine(); s.i < len(s.text); s.endLine() {
		s.line++
		s.start = s.i
		s.skipSpaces()
		if s.i < len(s.text) && s.text[s.i] != '\n' && s.i-s.start <= s.indent {
			s.i = s.start
			break
		}
	}
	if s.text[s.i-1] == '\n' { // where the caller finds the end of a line
		s.line--
		s.i--
	}
}

// scalar reads a key, or a value.
func (s *precheck) scalar() {
	column := s.i - s.start
	at := Mark{s.line, int32(column + 1)}
	text := s.scalarText()
	s.add()
	s.skipSpaces()
	if s.i >= len(s.text) || s.text[s.i] != ':' || !s.endsKey() {
		if s.item && s.region.key == "" {
			s.beside++
		}
		s.item = false
		return
	}
	s.i++
	s.item = false
	s.indent = column
	s.key(text, at)
}

// endsKey reports whether the colon here ends a key.
func (s *precheck) endsKey() bool {
	return s.followed() || len(s.flow) > 0 && bytes.IndexByte([]byte(",[]{}\"'"), s.text[s.i+1]) >= 0
}

// key counts a key, and begins a region if its value is none of a rule.
func (s *precheck) key(name []byte, at Mark) {
	s.add()
	s.owed = true
	if s.region.key != "" {
		return
	}
	k, known := s.grammar[string(name)]
	switch {
	case known:
		s.keys++
		if k.Name == KeyKey {
			s.rules++
		}
		if k.nests() {
			return
		}
	case string(name) == "<<":
		return
	default:
		s.beside += 2
	}
	s.skipSpaces()
	for s.i < len(s.text) && (s.text[s.i] == '&' || s.text[s.i] == '!') {
		s.word()
		s.skipSpaces()
	}
	switch {
	case s.i < len(s.text) && (s.text[s.i] == '[' || s.text[s.i] == '{'):
		s.region = region{key: string(name), at: at, depth: len(s.flow) + 1}
	case s.ended() && len(s.flow) == 0:
		s.region = region{key: string(name), at: at, indent: s.indent}
	}
}

// nests reports whether the value of a key is a map or list that belongs to rules.
func (k *Keyword) nests() bool {
	switch k.Name {
	case KeyDescriptors, KeyRateLimit, KeyRateLimits, KeyReplaces, KeyPenalty, KeyReserve, KeyRLQS:
		return true
	}
	return false
}

// scalarText reads the text of a key or value, in quotes or not. Of one that goes over several lines it returns a part.
func (s *precheck) scalarText() []byte {
	begin := s.i
	if q := s.text[s.i]; q == '"' || q == '\'' {
		return s.quoted(q)
	}
	s.i++
	for s.i < len(s.text) {
		c := s.text[s.i]
		if c == '\n' || c == ':' && s.endsKey() || c == '#' && blank(s.text[s.i-1]) ||
			len(s.flow) > 0 && (c == ',' || c == '[' || c == ']' || c == '{' || c == '}') {
			break
		}
		s.i++
	}
	return bytes.TrimRight(s.text[begin:s.i], " \t\r")
}

func (s *precheck) quoted(q byte) []byte {
	s.i++
	begin := s.i
	for ; s.i < len(s.text); s.i++ {
		switch c := s.text[s.i]; {
		case c == '\n':
			s.line++
			s.start = s.i + 1
		case c == '\\' && q == '"':
			s.i++
		case c == q:
			s.i++
			return s.text[begin : s.i-1]
		}
	}
	s.i = min(s.i, len(s.text))
	return s.text[min(begin, s.i):s.i]
}
