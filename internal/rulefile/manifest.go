package rulefile

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// configMap is the kind of Kubernetes objects that contain files.
const configMap = "ConfigMap"

// kubernetes returns the kind of a Kubernetes object, or "" if n is not one.
func kubernetes(n *yaml.Node) string {
	if peek(n, "apiVersion") == "" {
		return ""
	}
	return peek(n, "kind")
}

// IsManifest reports whether the root of a file is a Kubernetes object. It reports an error if it is.
func (r *Reader) IsManifest(root *yaml.Node) bool {
	kind := kubernetes(root)
	if kind == "" {
		return false
	}
	text := "error loading config file: this is a Kubernetes %s, not a file of rules"
	if kind == configMap {
		text += ": mount it so that a server reads the files in its data, or check it with ratelimitd check --configmap"
	}
	r.Fail(At(root), "", text, plain.Shorten(kind))
	return true
}

// Held is a file that may contain rules: a file on its own, or an entry of a ConfigMap.
type Held struct {
	Source

	Namespace string // of the ConfigMap; may be empty
	File      string // the file that contains the entry
	At        Mark   // position of the entry in File
	Foreign   bool   // it has neither domain nor descriptors, so it contains something else
}

// FromConfigMaps returns the files in the ConfigMaps of a file of Kubernetes manifests, including ConfigMaps in a List. It returns a file
// without manifests unchanged.
func FromConfigMaps(s Source) ([]Held, Problems) {
	r := &Reader{Report: Report{File: s.Name}, Grammar: NewGrammar()}
	if !r.Sound(s.Data) {
		return nil, r.Problems
	}
	m := manifests{Report: &r.Report, lines: bytes.Split(s.Data, []byte("\n"))}
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
		if len(doc.Content) > 0 {
			found = found || kubernetes(doc.Content[0]) != ""
			m.object(doc.Content[0], "")
		}
	}
	switch {
	case !found:
		return []Held{{Source: s, File: s.Name, Foreign: !ofRules(s.Data)}}, nil
	case m.padded > maxPadded:
		r.Fail(Mark{}, "", "error loading config file: its ConfigMaps have too many entries for their number of lines: split it")
	}
	return m.held, r.Problems
}

// maxPadded bounds the empty lines that replace the lines before the entries of a file.
const maxPadded = 64 << 20

// manifests is a file of Kubernetes objects and the files in its ConfigMaps.
type manifests struct {
	*Report

	lines  [][]byte
	held   []Held
	padded int
}

// object adds the files of a ConfigMap, or of the ConfigMaps in a list. It does not follow aliases. An object without a kind has its
// list's kind.
func (m *manifests) object(n *yaml.Node, kind string) {
	kind = cmp.Or(kubernetes(n), kind)
	if of, list := strings.CutSuffix(kind, "List"); list {
		for _, item := range value(n, "items").Content {
			m.object(item, of)
		}
	}
	for _, field := range []string{"data", "binaryData"} {
		all := value(n, field).Content
		for i := 0; kind == configMap && i+1 < len(all); i += 2 {
			m.entry(n, field, all[i].Value, all[i+1])
		}
	}
}

// entry adds an entry of a ConfigMap as a file. If the entry is literal text, messages have the lines and columns of the manifests.
func (m *manifests) entry(object *yaml.Node, field, key string, v *yaml.Node) {
	of := value(object, "metadata")
	h := Held{File: m.File, Namespace: peek(of, "namespace"), At: At(v)}
	h.Name, h.Data = fmt.Sprintf("%s: %s.%s of %s", m.File, field, key, cmp.Or(peek(of, "name"), configMap)), []byte(v.Value)
	if field == "binaryData" {
		var err error
		if h.Data, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(v.Value), "")); err != nil {
			m.Fail(h.At, "", "binaryData.%s is not base64", plain.Shorten(key))
			return
		}
	}
	h.Foreign = !ofRules(h.Data)
	if !h.Foreign && field == "data" && v.Style&yaml.LiteralStyle != 0 && v.Line < len(m.lines) {
		if m.padded += v.Line; m.padded > maxPadded {
			return
		}
		first := max(0, slices.IndexFunc(m.lines[v.Line:], func(line []byte) bool { return len(bytes.TrimSpace(line)) > 0 }))
		blanks := func(text string) int { return len(text) - len(strings.TrimLeft(text, " ")) }
		h.Source = Source{
			Name: m.File, Data: append(bytes.Repeat([]byte("\n"), v.Line), v.Value...), First: v.Line,
			Indent: blanks(string(m.lines[v.Line+first])) - blanks(strings.TrimLeft(v.Value, "\n")),
		}
	}
	m.held = append(m.held, h)
}

// keyOfRules matches a line of rules in text that cannot be parsed.
var keyOfRules = regexp.MustCompile(`(?m)^["']?(domain|descriptors)["']?\s*:`)

// ofRules reports whether a text is intended as rules: it has domain or descriptors.
func ofRules(data []byte) bool {
	var doc yaml.Node
	if r := NewSilent(nil); !r.Sound(data) || yaml.Unmarshal(data, &doc) != nil {
		return keyOfRules.Match(data)
	}
	return len(doc.Content) > 0 && (value(doc.Content[0], KeyDomain).Kind != 0 || value(doc.Content[0], KeyDescriptors).Kind != 0)
}
