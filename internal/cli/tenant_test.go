package cli

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestTenantsThereAndBack: for any names of tenants, import restores an export, or export fails.
func TestTenantsThereAndBack(t *testing.T) {
	t.Parallel()
	parts := []string{"\r\n", "\r", "\n", "\"", ",", "#", "'", " ", "\t", "\\", "\xff", "\x80", "\x00", "\ufeff", "\u0085", "\u2028", "ü", "a", "tenant", "{", "\\.", "🦊"}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // it is the same each time
	var all []*adminv1.Tenant
	for range 2000 {
		name := ""
		for range 1 + random.IntN(5) {
			name += parts[random.IntN(len(parts))]
		}
		all = append(all, &adminv1.Tenant{RawTenant: []byte(name), Plan: "gold", RequestsPerUnit: new(uint32(len(name)))})
	}
	for form, asJSON := range map[string]bool{"csv": false, "json": true} {
		var want, got []string
		var file bytes.Buffer
		if !asJSON {
			file.WriteString("tenant,plan,requests_per_unit,until\n")
		}
		for _, m := range all {
			var one bytes.Buffer
			err := writeTenants(&one, []*adminv1.Tenant{m}, asJSON)
			if crlf := strings.Contains(string(m.GetRawTenant()), "\r\n"); crlf && !asJSON {
				if err == nil || !strings.Contains(err.Error(), "crlf") && !strings.Contains(err.Error(), `\r\n`) {
					t.Errorf("%q as %s: %v, want it invalid", m.GetRawTenant(), form, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%q as %s: %v", m.GetRawTenant(), form, err)
			}
			want = append(want, string(m.GetRawTenant()))
			file.WriteString(strings.TrimPrefix(one.String(), "tenant,plan,requests_per_unit,until\n"))
		}
		path := filepath.Join(t.TempDir(), "tenants")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := readTenants(path, nil)
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		for _, m := range read {
			got = append(got, string(m.GetRawTenant()))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", form, d)
		}
		got = nil // for TENANTS_FILE
		tenants.ReadRows(tenants.Input{Name: path, Reader: &file}, func(_ int, r *tenants.Row) bool {
			got = append(got, r.Name())
			return true
		}, func(line int, text string) { t.Errorf("%s:%d: %s", form, line, text) })
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("TENANTS_FILE, %s (-want +got):\n%s", form, d)
		}
	}
}

// TestDescriptorsThereAndBack: commands accept descriptors in the form that they print.
func TestDescriptorsThereAndBack(t *testing.T) {
	t.Parallel()
	parts := []string{"\r", "\n", "=", ",", ";", "\\", "n", "u001b", "x41", "\x1b", "\xff", "\u202e", "\u0085", "ü", "a", " ", "'", "$(x)"}
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // it is the same each time
	text := func() (s string) {
		for range 1 + random.IntN(5) {
			s += parts[random.IntN(len(parts))]
		}
		return s
	}
	for range 2000 {
		key, value := strings.ToValidUTF8(text(), "?"), text()
		arg := pairText(key, value)
		entries, err := Entries(arg + ",b=c")
		if err != nil || len(entries) != 2 || string(entries[0].Key) != key || string(entries[0].Value) != value {
			t.Errorf("%q, %q is printed as %s, which is %q, %v", key, value, arg, entries, err)
		}
	}
}
