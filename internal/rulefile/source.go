package rulefile

// Source is one file of rules, or one resource of a control plane.
type Source struct {
	Name string // a path, or the name of a resource, as used in messages
	Data []byte // YAML; ignored if File is set
	File *File  // what came as values; it is not changed

	Indent int // of the text in its file, for the columns of messages
}
