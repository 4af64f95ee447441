package rulefile

import "gopkg.in/yaml.v3"

// Source is one file of rules, or one resource of a control plane.
type Source struct {
	Name string     // a path, or the name of a resource, as used in messages
	Data []byte     // YAML, or if Root is set what that was made of
	Root *yaml.Node // what came as values, as [Value] makes nodes of them; it is not changed

	Indent int // of the text in its file, for the columns of messages
	First  int // the line in its file where the text begins, if Data has empty lines for those before it
}
