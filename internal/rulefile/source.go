package rulefile

import "gopkg.in/yaml.v3"

// Source is a file of rules or a resource of a control plane.
type Source struct {
	Name string     // path, or name of a resource, in messages
	Data []byte     // YAML; if Root is set, the data that it was created from
	Root *yaml.Node // nodes created by [Value] for rules that arrived as values; read-only

	Indent int // of the text in its file, for columns in messages
	First  int // first line of the text in its file, if Data has empty lines instead of the lines before it
}
