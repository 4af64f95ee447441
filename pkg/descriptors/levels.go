package descriptors

// Levels returns the keys and values on the path to the rule, as written. An empty value matches any value.
func (r *Rule) Levels() []Entry {
	path := r.node.path()
	levels := make([]Entry, 0, len(path))
	for _, n := range path {
		levels = append(levels, Entry{Key: []byte(n.Key), Value: []byte(n.Value)})
	}
	return levels
}

// DomainName returns the name of the rule's domain.
func (r *Rule) DomainName() string { return r.domain }
