package rulefile

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// configMap is the kind of the Kubernetes objects that hold files.
const configMap = "ConfigMap"

// kubernetes returns the kind of the Kubernetes object that a map is, or "".
func kubernetes(n *yaml.Node) string {
	if peek(n, "apiVersion") == "" {
		return ""
	}
	return peek(n, "kind")
}

// IsManifest reports whether the root of a file is a Kubernetes object, and reports an error if it is.
func (r *Reader) IsManifest(root *yaml.Node) bool {
	kind := kubernetes(root)
	if kind == "" {
		return false
	}
	text := "error loading config file: this is a Kubernetes %s, not a file of rules"
	if kind == configMap {
		text += ": those are in its data, which a server reads where it is mounted, and ratelimitd check --configmap as it is"
	}
	r.Fail(At(root), "", text, plain.Shorten(kind))
	return true
}

// FromConfigMaps returns the files that the ConfigMaps in a file of Kubernetes manifests hold. A file that is none is returned as
// it is.
func FromConfigMaps(s Source) ([]Source, Problems) {
	r := &Reader{Report: Report{File: s.Name}, Grammar: NewGrammar()}
	if !r.Sound(s.Data) {
		return nil, r.Problems
	}
	m := manifests{name: s.Name, lines: bytes.Split(s.Data, []byte("\n"))}
	found := false
	for dec := yaml.NewDecoder(bytes.NewReader(s.Data)); ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.Syntax(s.Data, err)
			return nil, r.Problems
		}
		if len(doc.Content) == 0 {
			continue
		}
		kind := kubernetes(doc.Content[0])
		found = found || kind != ""
		if kind == configMap {
			m.add(doc.Content[0])
		}
	}
	switch {
	case !found:
		return []Source{s}, nil
	case m.tooMany:
		r.Fail(Mark{}, "", "error loading config file: its ConfigMaps have too many entries for as many lines: split it")
		return nil, r.Problems
	}
	return m.held, nil
}

// maxHeld bounds the lines of a file times the entries of its ConfigMaps, since each entry is kept behind as many empty lines as it
// stands behind others.
const maxHeld = 64 << 20

// manifests is a file of Kubernetes objects, and what their ConfigMaps hold.
type manifests struct {
	name  string
	lines [][]byte
	held  []Source

	tooMany bool // entries
}

// add adds the files of a ConfigMap. It follows no aliases.
func (m *manifests) add(object *yaml.Node) {
	for i := 0; i+1 < len(object.Content); i += 2 {
		data := object.Content[i+1].Content
		if object.Content[i].Value != "data" {
			continue
		}
		if m.tooMany = m.tooMany || (len(m.held)+len(data)/2)*len(m.lines) > maxHeld; m.tooMany {
			return
		}
		for j := 0; j+1 < len(data); j += 2 {
			m.held = append(m.held, m.entry(data[j].Value, data[j+1]))
		}
	}
}

// entry returns the file that an entry of the data of a ConfigMap is. Where the text stands there as it is, lines and columns of
// messages are those of the manifests.
func (m *manifests) entry(key string, v *yaml.Node) Source {
	if v.Style&yaml.LiteralStyle == 0 || v.Line >= len(m.lines) {
		return Source{Name: m.name + ": data." + key, Data: []byte(v.Value)}
	}
	first := max(0, slices.IndexFunc(m.lines[v.Line:], func(line []byte) bool { return len(bytes.TrimSpace(line)) > 0 }))
	blanks := func(text string) int { return len(text) - len(strings.TrimLeft(text, " ")) }
	return Source{
		Name: m.name, Data: append(bytes.Repeat([]byte("\n"), v.Line), v.Value...),
		Indent: blanks(string(m.lines[v.Line+first])) - blanks(strings.TrimLeft(v.Value, "\n")),
	}
}
