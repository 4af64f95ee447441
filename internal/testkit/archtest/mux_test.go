package archtest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNobodyServesDefaultServeMux finds code that serves http.DefaultServeMux or adds to it. Any import may register pages there, and
// net/http/pprof does. An http.Server without a handler serves it too.
func TestNobodyServesDefaultServeMux(t *testing.T) {
	t.Parallel()
	comment := regexp.MustCompile(`//.*`)
	uses := regexp.MustCompile(`(?:^|[^.\w])http\.(DefaultServeMux|Handle|HandleFunc|ListenAndServe|ListenAndServeTLS|Serve|ServeTLS)\b`)
	server := regexp.MustCompile(`\bhttp\.Server(\{[^}]*\}|\))`)
	handler := regexp.MustCompile(`\bHandler:\s*(\w+)`)
	servers := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(path, d.Name())
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		code := comment.ReplaceAllString(string(text), "")
		for _, use := range uses.FindAllString(code, -1) {
			t.Errorf("%s: %q is, or uses, the mux to which any import may add pages; serve by internal/process/web", path, use)
		}
		for _, s := range server.FindAllString(code, -1) {
			servers++
			if given := handler.FindStringSubmatch(s); given == nil || given[1] == "nil" {
				t.Errorf("%s: a server without a handler serves http.DefaultServeMux: %s", path, s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if servers == 0 {
		t.Fatalf("found no http.Server below %s, not even that of internal/process/web", root)
	}
}
