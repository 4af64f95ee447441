package ruleschema_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
)

var rewrite = flag.Bool("rewrite", false, "write what the code does into testdata, to be looked at before it is committed")

// schemaFile is next to the documentation, because all files below config are rules.
const schemaFile = "../../../docs/rules.schema.json"

// TestSchema compares the committed schema with the generated one. tools/schema compares it with Load.
func TestSchema(t *testing.T) {
	t.Parallel()
	now := ruleschema.Schema()
	var parsed struct {
		Properties map[string]map[string]any
		Defs       map[string]struct{ Properties map[string]map[string]any } `json:"$defs"`
	}
	if err := json.Unmarshal(now, &parsed); err != nil {
		t.Fatal(err)
	}
	maps := []map[string]map[string]any{parsed.Properties}
	for _, d := range parsed.Defs {
		maps = append(maps, d.Properties)
	}
	for _, properties := range maps {
		for key, p := range properties {
			if p["description"] == nil || len(p) < 2 {
				t.Errorf("the row of %s does not say what the key takes, or what it is: %v", key, p)
			}
		}
	}
	if *rewrite {
		if err := os.WriteFile(schemaFile, now, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(was), string(now)); diff != "" {
		t.Errorf("make docs writes another %s (-it +the tables):\n%s", schemaFile, diff)
	}
}
