package descriptors

// Keys lists every key of the grammar.
func Keys() (out []string) {
	for _, k := range keywords() {
		out = append(out, k.name)
	}
	return out
}

// OwnKeywords lists the keys of the grammar that envoyproxy/ratelimit does not have.
func OwnKeywords() (out []string) {
	for _, k := range keywords() {
		if !k.ofReference {
			out = append(out, k.name)
		}
	}
	return out
}

// MaskBreaks returns text with underscores in place of what ends a line beside LF.
func MaskBreaks(text []byte) []byte {
	_, masked := withLF(text)
	return masked
}
