package rulefile

import "bytes"

// The parser creates a node of a few hundred bytes for every value before any validation. So the characters that begin or end values are
// counted first, which needs no memory. Their number is at least half that of the nodes, and in rules about equal.

// Bounds on the values of a file.
const (
	maxValues    = 1_700_000 // their nodes take 300 MB
	freeValues   = 100_000   // allowed even without rules
	valuesPerKey = 32        // additional values per key of a descriptor and per unit of a limit
	keyCost      = 2         // additional memory of a descriptor, in values
	commentCost  = 4         // memory of a comment, in values; consecutive comment lines are one comment
)

// fits reports an error and returns false if text has more values than its rules can need.
func (r *Reader) fits(text []byte) bool {
	values, keys, line, before := 0, 0, int32(0), false
	for l := range bytes.Lines(text) {
		line++
		n, k := countValues(l)
		comment := n == 0 && len(bytes.TrimSpace(l)) > 0
		if comment && !before {
			n = commentCost
		}
		values, keys, before = values+n, keys+k, comment
		if values > min(maxValues, freeValues+valuesPerKey*keys) {
			r.Fail(Mark{line, 1}, "", "error loading config file: too many keys and values up to here, by the number of : , - [ { # and lines: want at most %d, "+
				"%d more for each descriptor and each unit of a limit, and %d in all", freeValues, valuesPerKey, maxValues)
			return false
		}
	}
	return true
}

// countValues returns an upper bound for the values in a line, and the number of keys of descriptors and limits.
func countValues(line []byte) (values, keys int) {
	text := bytes.TrimSpace(line)
	if len(text) == 0 || text[0] == '#' && !bytes.ContainsAny(text, `"'`) { // values may follow a quote from an earlier line
		return 0, 0
	}
	values = 1
	for i, c := range text {
		switch c {
		case '-':
			if i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\t' {
				values++
			}
		case '[':
			values++
		case '#':
			values += commentCost
		case '{', ',', '?': // a key without a value has the value null
			values += 2
		case ':':
			values++
			key := isKey(text[:i], KeyKey)
			if key {
				values += keyCost
			}
			if key || isKey(text[:i], KeyUnit) {
				keys++
			}
		}
	}
	return values, keys
}

// isKey reports whether text, which precedes a colon, ends with the key name.
func isKey(text []byte, name string) bool {
	rest, ok := bytes.CutSuffix(bytes.TrimRight(text, ` "'`), []byte(name))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t{,-?\"'"), rest[len(rest)-1]) >= 0)
}
