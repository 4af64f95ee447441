package descriptors

// Keys lists every key of the grammar.
func Keys() (out []string) {
	for _, k := range keywords() {
		out = append(out, k.name)
	}
	return out
}
