package rulefile

import "bytes"

// The parser builds a node of some hundred bytes for every value of a file before anything can be said about it. So the
// signs that begin or end a value are counted first, which takes no memory. They are at least half as many as the nodes, and in
// rules about as many.

// Bounds on the values of a file.
const (
	maxValues    = 1_700_000 // whose nodes take 300 MB
	freeValues   = 100_000   // of a file that has no rules at all
	valuesPerKey = 32        // as many more for each key of a descriptor, and for each unit of a limit
	keyCost      = 2         // a descriptor takes as much memory as so many values, besides its own
	commentCost  = 4         // a comment takes as much memory as so many values; lines of comments in a row are one
)

// fits reports whether text has no more values than its rules can need, and reports an error if it has.
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

// countValues returns how many values a line has at most, and how many keys of descriptors and limits.
func countValues(line []byte) (values, keys int) {
	text := bytes.TrimSpace(line)
	if len(text) == 0 || text[0] == '#' && !bytes.ContainsAny(text, `"'`) { // behind a quote of a line before there may be values
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
		case '{', ',', '?': // a key without a value has one that is null
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

// isKey reports whether text, which a colon follows, ends with a key of that name.
func isKey(text []byte, name string) bool {
	rest, ok := bytes.CutSuffix(bytes.TrimRight(text, ` "'`), []byte(name))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t{,-?\"'"), rest[len(rest)-1]) >= 0)
}
