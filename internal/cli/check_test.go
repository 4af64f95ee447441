package cli

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checked runs check on rules with an error, a warning, and an unreadable file, and on valid rules, and returns the
// output.
func checked(t *testing.T, form string) string {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"bad/a b%.yaml":  "domain: shop\ndescriptors:\n  - key: 'u,s:e%r'\n    rate_limit: {unit: eon, requests_per_unit: 3}\n  - key: a\n    key: b\n",
		"good/good.yaml": "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 3}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	code := Run(t.Context(), []string{"ratelimitd", "check", "--output", form, "bad", "good", "missing"}, Process{Stdout: &stdout, Stderr: &stderr})
	want := "good: ok, 1 rule in 1 file, 0 warnings\nratelimitd: bad: 1 error in 1 file\nmissing: 1 error in 0 files\n"
	if stderr.String() != want || code != exitFailed {
		t.Errorf("exit code %d, stderr has %q, want %q", code, stderr.String(), want)
	}
	return stdout.String()
}

func TestCheckOutputJSON(t *testing.T) {
	got := checked(t, "json")
	want := `[{"file":"bad/a b%.yaml","line":4,"column":24,"path":"shop.u,s:e%r","severity":"error","message":"invalid rate limit unit 'eon': want second, minute, hour, day, week, month, year or forever"},
 {"file":"bad/a b%.yaml","line":6,"column":5,"path":"shop.b","severity":"warning","message":"MESSAGE"},
 {"file":"missing","line":0,"column":0,"path":"","severity":"error","message":"no such file or directory"}]
`
	var problems []struct{ Severity, Message string }
	if err := json.Unmarshal([]byte(got), &problems); err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Severity == "warning" {
			quoted, _ := json.Marshal(p.Message)
			got = strings.ReplaceAll(got, string(quoted), `"MESSAGE"`)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCheckOutputGitHub(t *testing.T) {
	lines := strings.Split(checked(t, "github"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	lines[1], _, _ = strings.Cut(lines[1], ".b::")
	if diff := cmp.Diff([]string{
		"::error file=bad/a b%25.yaml,line=4,col=24,title=shop.u%2Cs%3Ae%25r::invalid rate limit unit 'eon': want second, minute, hour, day, week, month, year or forever",
		"::warning file=bad/a b%25.yaml,line=6,col=5,title=shop",
		"::error file=missing::no such file or directory",
		"",
	}, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCheckOutputSARIF checks the output against the requirements of SARIF 2.1.0's schema and of code scanning.
func TestCheckOutputSARIF(t *testing.T) {
	got := checked(t, "sarif")
	var log struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name  string
					Rules []struct {
						ID               string
						ShortDescription struct{ Text string }
					}
				}
			}
			ColumnKind string
			Results    []struct {
				RuleID, Level string
				Message       struct{ Text string }
				Locations     []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine, StartColumn *int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(got), &log); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"$schema", "version", "runs", "ruleId", "shortDescription", "physicalLocation", "artifactLocation", "uri", "startLine"} {
		if !strings.Contains(got, `"`+name+`": `) { // Unmarshal ignores the case of names
			t.Errorf("nothing is called %s", name)
		}
	}
	if log.Version != "2.1.0" || len(log.Runs) != 1 || log.Runs[0].Tool.Driver.Name != "ratelimitd" || log.Runs[0].ColumnKind != "unicodeCodePoints" {
		t.Fatalf("no log of one run of ratelimitd:\n%s", got)
	}
	var rules, results []string
	for _, r := range log.Runs[0].Tool.Driver.Rules {
		if rules = append(rules, r.ID); r.ID == "" || r.ShortDescription.Text == "" {
			t.Errorf("rule %+v says nothing", r)
		}
	}
	for _, r := range log.Runs[0].Results {
		if !slices.Contains(rules, r.RuleID) || r.Message.Text == "" || len(r.Locations) != 1 {
			t.Fatalf("result %+v", r)
		}
		at := r.Locations[0].PhysicalLocation
		file, err := url.Parse(at.ArtifactLocation.URI)
		if err != nil || file.Scheme != "" {
			t.Errorf("%q is no relative URI: %v", at.ArtifactLocation.URI, err)
		}
		if at.Region.StartLine == nil || *at.Region.StartLine < 1 || at.Region.StartColumn != nil && *at.Region.StartColumn < 1 {
			t.Errorf("result %+v is nowhere", r)
		}
		results = append(results, r.Level+" "+r.RuleID+" "+file.Path)
	}
	if diff := cmp.Diff([]string{"error invalid bad/a b%.yaml", "warning suspicious bad/a b%.yaml", "error invalid missing"}, results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}
