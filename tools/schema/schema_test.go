package schema_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

const repository = "../.."

// TestSchema compares the schema with Load for every file of rules in the repository and its tests, valid and invalid.
// Each difference needs a reason in beyond.
func TestSchema(t *testing.T) {
	t.Parallel()
	compiled := compile(t)
	used := map[string]bool{}
	files := rules(t)
	apart(t, files)
	invalid := 0
	for name, data := range files {
		_, problems, err := descriptors.Load([]descriptors.Source{{Name: name, Data: data}}, descriptors.Options{})
		value, unreadable := asEditors(data)
		if unreadable != nil { // an editor reports this without a schema
			if err == nil {
				t.Errorf("%s is loaded, but cannot be read: %v", name, unreadable)
			}
			continue
		}
		judged := compiled.Validate(value)
		if judged != nil {
			invalid++
		}
		var said []string
		switch {
		case err != nil && judged == nil:
			for _, problem := range problems {
				if !problem.Warning {
					said = append(said, problem.Text)
				}
			}
		case err == nil && judged != nil:
			said = strings.Split(judged.Error(), "\n")[1:]
		}
		for _, line := range said {
			if i := slices.IndexFunc(beyond, func(b reason) bool { return b.said.MatchString(line) }); i >= 0 {
				used[beyond[i].why] = true
				continue
			}
			t.Errorf("%s is judged differently, by %q:\nby Load: %v\nby the schema: %v", name, line, problems, judged)
		}
	}
	for _, b := range beyond {
		if !used[b.why] {
			t.Errorf("nothing is judged differently because %s any more", b.why)
		}
	}
	if len(files) < 100 || invalid < 40 {
		t.Errorf("only %d files, of which the schema rejects %d", len(files), invalid)
	}
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := jsonschema.UnmarshalJSON(bytes.NewReader(ruleschema.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("rules.json", text); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("rules.json") // also checks it against the meta-schema
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// rules returns all files of rules by name: the repository's, and members of archives.
func rules(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "dist") {
				return fs.SkipDir
			}
			return err
		}
		name, err := filepath.Rel(repository, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case strings.HasPrefix(name, "config/") && name != "config/overlay.yaml", strings.Contains(name, "/rules/"), strings.Contains(name, "/sample/"):
			if files[name], err = os.ReadFile(path); err != nil {
				return err
			}
		case strings.HasPrefix(name, "pkg/descriptors/testdata/"), strings.HasPrefix(name, "internal/rules/rulefmt/testdata/"), strings.HasPrefix(name, "internal/rules/rulediff/testdata/"), strings.HasPrefix(name, "cmd/ratelimitd/testdata/"):
			members(files, name, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// members adds the rules in an archive, except overlays, whose descriptors are patterns.
func members(files map[string][]byte, name, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		return // a fuzzing file
	}
	for _, f := range a.Files {
		parts := strings.Split(f.Name, "/")
		overlay := slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(part, "overlay") })
		if overlay || !strings.HasSuffix(f.Name, ".yaml") {
			continue
		}
		files[fmt.Sprintf("%s %s", name, f.Name)] = f.Data
	}
}

// apart adds each descriptor at the top level of a file as a separate file, so that an invalid one does not hide others.
// It skips files with aliases, whose descriptors depend on each other.
func apart(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, data := range maps.Clone(files) {
		var doc yaml.Node
		if bytes.Contains(data, []byte("*")) && bytes.Contains(data, []byte("&")) || yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
			continue
		}
		root := doc.Content[0]
		for i := 1; i < len(root.Content); i += 2 {
			list := root.Content[i]
			if root.Content[i-1].Value != "descriptors" || list.Kind != yaml.SequenceNode || len(list.Content) < 2 {
				continue
			}
			for at, item := range list.Content {
				one := *list
				one.Content = []*yaml.Node{item}
				root.Content[i] = &one
				text, err := yaml.Marshal(&doc)
				if err != nil {
					t.Fatal(err)
				}
				files[fmt.Sprintf("%s #%d", name, at)] = text
			}
			root.Content[i] = list
		}
	}
}

// asEditors converts the first document as an editor does for a schema: by YAML 1.2, with aliases and merges resolved,
// and the last of repeated keys.
func asEditors(data []byte) (any, error) { //nolint:ireturn // YAML of any kind
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return plain(doc.Content[0], 0)
}

func plain(n *yaml.Node, depth int) (any, error) { //nolint:ireturn // YAML of any kind
	if depth++; depth > 200 {
		return nil, fmt.Errorf("line %d is nested too deep", n.Line)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return plain(n.Alias, depth)
	case yaml.MappingNode:
		return plainMap(n, depth)
	case yaml.SequenceNode:
		out := []any{}
		for _, item := range n.Content {
			v, err := plain(item, depth)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case yaml.DocumentNode, yaml.ScalarNode: // they have the value of their content
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, err
	}
	if _, ok := v.(time.Time); ok {
		v = n.Value
	}
	return v, nil
}

func plainMap(n *yaml.Node, depth int) (map[string]any, error) {
	out := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		v, err := plain(value, depth)
		if err != nil {
			return nil, err
		}
		if key.Tag != "!!merge" {
			out[key.Value] = v
			continue
		}
		parts, isList := v.([]any)
		if !isList {
			parts = []any{v}
		}
		for _, part := range slices.Backward(parts) {
			m, ok := part.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("line %d: << takes maps", n.Line)
			}
			maps.Copy(out, m)
		}
	}
	return out, nil
}

// reason is a reason for a difference between Load and the schema.
type reason struct {
	said *regexp.Regexp
	why  string
}

// beyond lists all reasons.
var beyond = []reason{
	// The schema rejects more.
	{regexp.MustCompile(`: got string, want null or boolean$`), "yes, no, on and off are booleans to Load, by YAML 1.1, and text to editors"},
	// Load rejects more.
	{regexp.MustCompile(`^replaces should not contain name of same descriptor`), "a schema does not compare texts"},
	{regexp.MustCompile(`^unknown timezone `), "the names of time zones are a database"},
	{regexp.MustCompile(`^duplicate descriptor composite key `), "a schema does not compare the keys and values of descriptors"},
	{regexp.MustCompile(`has the algorithm and the window of another limit here`), "a schema does not compare the limits of a list"},
	{regexp.MustCompile(`^unit: forever below the entry `), "a schema does not see the descriptors above"},
	{regexp.MustCompile(`^initial is \d+; it must be 0 to the burst`), "a schema does not compare numbers"},
	{regexp.MustCompile(`^(count_refused|late_charge) cannot be combined with debt|^lease '\w+' does not apply with debt`), "a debt of 0 is none"},
	{regexp.MustCompile(`^count_refused cannot be false with late_charge`), "a schema does not compare the values of two keys"},
	{regexp.MustCompile(`^error parsing metadata: `), "metadata is anything to the schema"},
	{regexp.MustCompile(`: the tag \S+ is not accepted`), "a schema sees no tags"},
	{regexp.MustCompile(`^error checking config: the number \S+ has a fraction`), "1.0 and 1e3 are whole numbers in JSON"},
	{regexp.MustCompile(`^reserve cannot be combined with (initial|debt|count_refused|late_charge)`), "a schema does not know what is usual"},
	{regexp.MustCompile(`^rlqs cannot be combined with (debt|share_threshold)|^rlqs does not apply (to a window of|below the key|where the key)|^rlqs (is on|needs a burst|of the plan) |^mode strict of rlqs `), "a schema compares neither numbers nor the keys of descriptors"},
	{regexp.MustCompile(`^estimate \d+ of a reserve never fits`), "a schema does not compare numbers with each other"},
	{regexp.MustCompile(`^the max of the estimate \d+ of a reserve never fits`), "likewise"},
	{regexp.MustCompile(`^start \d+ of an estimate is not between its min`), "likewise"},
	{regexp.MustCompile(`is not a key of this descriptor or of one above it|^holder and plan_of are the same entry|^plan_of '\w+' is an entry with share_threshold|is a key of this descriptor or of one above it`), "a schema does not look at descriptors above"},
	{regexp.MustCompile(`^by '\S+' of a reserve is an entry with the value|^by and plan_of are the same entry|^reserve by an entry cannot be combined with quota groups`), "a schema looks neither at descriptors above nor at the domain"},
	{regexp.MustCompile(`^reserve of the plan '\w+' differs in by from`), "a schema does not compare plans"},
	{regexp.MustCompile(`^fill_interval of \d+ µs does not add|^burst of \d+ takes over 100 years`), "a schema does not calculate"},
	{regexp.MustCompile(`want a time of 1us to `), "a schema does not add up times"},
}
