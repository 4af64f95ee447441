package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestFetchEnvoy has the script that fetches Envoy refuse what is not the release.
func TestFetchEnvoy(t *testing.T) {
	testkit.NotShort(t)
	const program = "#!/bin/sh\n"
	home := t.TempDir()
	gpg := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "gpg", append([]string{"--batch", "--quiet", "--homedir", home, "--passphrase", ""}, args...)...)
		cmd.Stdin = strings.NewReader(fmt.Sprintf("%x  *envoy-1.40.0-linux-x86_64\n%x  other\n", sha256.Sum256([]byte(program)), home))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("gpg %s: %v", args, err)
		}
		return string(out)
	}
	signers := map[string]string{}
	for _, name := range []string{"maintainers", "somebody"} {
		gpg("--quick-gen-key", name, "ed25519", "sign", "never")
		for line := range strings.Lines(gpg("--with-colons", "--list-keys", name)) {
			if fields := strings.Split(line, ":"); fields[0] == "fpr" {
				signers[name] = fields[9]
			}
		}
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	for _, c := range []struct{ name, version, signer, body, says string }{
		{"what was signed", "1.40.0", "maintainers", program, ""},
		{"signed by somebody else", "1.40.0", "somebody", program, "is not signed by " + signers["maintainers"]},
		{"another program than was signed", "1.40.0", "maintainers", program + "x", "FAILED"},
		{"another program than is pinned", "1.39.2", "maintainers", program, "FAILED"},
		{"a version that nobody has listed", "1.0.0", "maintainers", program, "no line for 1.0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			signed := gpg("--local-user", signers[c.signer], "--output", "-", "--clear-sign")
			site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch filepath.Base(r.URL.Path) {
				case "checksums.txt.asc":
					fmt.Fprint(w, signed)
				case "lookup": // a keyserver may answer anything
					fmt.Fprint(w, gpg("--armor", "--export"))
				default:
					fmt.Fprint(w, c.body)
				}
			}))
			defer site.Close()
			file := filepath.Join(t.TempDir(), "envoy")
			cmd := exec.CommandContext(t.Context(), "./fetch-envoy", c.version, file)
			cmd.Env = append(os.Environ(), "ENVOY_RELEASES="+site.URL, "ENVOY_KEYSERVER="+site.URL, "ENVOY_SIGNER="+signers["maintainers"])
			out, err := cmd.CombinedOutput()
			_, missing := os.Stat(file)
			if good := c.says == ""; (err == nil) != good || (missing == nil) != good || !strings.Contains(string(out), c.says) {
				t.Errorf("%v, %v:\n%s", err, missing, out)
			}
		})
	}
}
