package rls

// What is known of the compression of headers (RFC 7541): how what stands for one of them begins, and where the names of paths are.
const (
	indexed       = 0x80 // one of a table, in 7 bits
	indexing      = 0x40 // written out, and put into the table
	sizeUpdate    = 0x20 // of the table
	tableSize     = 4096 // unless a client sets another one
	huffman       = 0x80 // of a string
	pathIndex     = 4    // and the one after it
	settingsTable = 1    // the setting of tableSize
)

// codedMethod is fullMethod in Huffman's code, as most clients write it.
const codedMethod = "\x60\xb5\x77\x3f\xa5\xd0\x5b\x3b\x98\x85\x5e\xc1\xa4\xb4\x1a\x93\x25\x7e\xec\xaf\xb4\x69\x2e\x73\x52\x64\xee\x2d\x9d\xcc\x42" +
	"\xb1\xba\x73\xdb\x44\x9b\x46\x92\xe7\x35\x26\x4f"

// stateless reports whether headers are those of a call of ShouldRateLimit, and whoever reads the next ones need not have read them: they put
// nothing into the table. Envoy's are so, unless one of them is new on its connection: it always writes paths out, and puts all else into the
// table. So the first call on each has others, and every call that has headers of its own, as for tracing.
//
// It looks no further: what they say may be wrong, and grpc would tell.
func stateless(block []byte) bool {
	own := false
	for len(block) > 0 {
		path, rest := passField(block)
		if rest == nil || path && own {
			return false
		}
		own, block = own || path, rest
	}
	return own
}

// passField returns what follows the first field, nil if it puts something into the table, is not whole, or is the path of another method;
// path says that it is ours.
func passField(block []byte) (path bool, rest []byte) {
	switch first := block[0]; {
	case first&indexed != 0:
		field, rest := integer(block, 7)
		if field == 0 {
			return false, nil
		}
		return false, rest
	case first&(indexing|sizeUpdate) != 0:
		return false, nil
	}
	name, rest := integer(block, 4)
	if name == 0 && rest != nil {
		_, _, rest = stringOf(rest)
	}
	if rest == nil {
		return false, nil
	}
	value, coded, rest := stringOf(rest)
	switch {
	case name != pathIndex && name != pathIndex+1:
		return false, rest
	case isOwn(value, coded):
		return true, rest
	default:
		return false, nil
	}
}

func isOwn(path []byte, coded bool) bool {
	if coded {
		return string(path) == codedMethod
	}
	return string(path) == fullMethod
}

// integer reads one that begins in the last bits of b, and returns what follows, nil if there is none.
func integer(b []byte, bits int) (n int, rest []byte) {
	most := 1<<bits - 1
	if n = int(b[0]) & most; n < most {
		return n, b[1:]
	}
	for i, c := range b[1:min(len(b), 4)] {
		n += int(c&0x7f) << (7 * i)
		if c&0x80 == 0 {
			return n, b[i+2:]
		}
	}
	return 0, nil
}

// stringOf reads a string, and returns what follows, nil if there is none.
func stringOf(b []byte) (s []byte, coded bool, rest []byte) {
	if len(b) == 0 {
		return nil, false, nil
	}
	n, rest := integer(b, 7)
	if rest == nil || n > len(rest) {
		return nil, false, nil
	}
	return rest[:n], b[0]&huffman != 0, rest[n:]
}

// setsTable reports whether settings change the size of the table of headers. Then what is written first has to tell.
func setsTable(payload []byte) bool {
	for number, value := range settings(payload) {
		if number == settingsTable && value != tableSize {
			return true
		}
	}
	return false
}
