package xds

// Words is words, for tests.
func Words(err error) string { return words(err) }
