package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/google/licenseclassifier/v2/assets"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// TestRelease builds the release of the last commit twice, from two clones in directories with different names, and tests
// the results.
func TestRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outs := make([]string, 2)
	for i := range outs {
		src := filepath.Join(dir, strings.Repeat("longer/", i)+"src")
		outs[i] = filepath.Join(dir, fmt.Sprintf("out%d", i))
		if out, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", filepath.Join("..", ".."), src).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := run(t.Context(), io.Discard, src, outs[i], []string{"linux/" + runtime.GOARCH}); err != nil {
			t.Fatal(err)
		}
	}
	first, second := contents(t, outs[0]), contents(t, outs[1])
	var version string
	for name, data := range first {
		if !bytes.Equal(data, second[name]) {
			t.Errorf("%s is not the same from two directories", name)
		}
		if v, ok := strings.CutSuffix(strings.TrimPrefix(name, "ratelimitd_"), "_image.tar"); ok {
			version = v
		}
	}
	if len(first) != 6 || len(second) != 6 || version == "" {
		t.Fatalf("a release consists of %q and %q; want an archive, an image, a chart, two bills and sums", keys(first), keys(second))
	}
	t.Run("sums", func(t *testing.T) { checkSums(t, first) })
	t.Run("archive", func(t *testing.T) {
		checkArchive(t, first[fmt.Sprintf("ratelimitd_%s_linux_%s.tar.gz", version, runtime.GOARCH)], version)
	})
	t.Run("image", func(t *testing.T) { checkImage(t, first["ratelimitd_"+version+"_image.tar"], version) })
	t.Run("chart", func(t *testing.T) { checkChart(t, first["ratelimitd-"+version+".tgz"], version) })
	t.Run("bill", func(t *testing.T) {
		checkBill(t, first[fmt.Sprintf("ratelimitd_%s_linux_%s.cdx.json", version, runtime.GOARCH)], version)
	})
	t.Run("bill of the image", func(t *testing.T) {
		bom := checkBill(t, first[fmt.Sprintf("ratelimitd_%s_image_linux_%s.cdx.json", version, runtime.GOARCH)], version,
			"ratelimitd", "golang.org/x/crypto/x509roots/fallback")
		index, err := layout.ImageIndexFromPath(unpack(t, bytes.NewReader(first["ratelimitd_"+version+"_image.tar"])))
		if err != nil {
			t.Fatal(err)
		}
		digest, err := only(t, index).Digest()
		if err != nil {
			t.Fatal(err)
		}
		if c := bom.Metadata.Component; c.Type != cyclonedx.ComponentTypeContainer || !strings.Contains(c.PackageURL, digest.Hex) {
			t.Errorf("the bill is that of %s %s, not of the image %s", c.Type, c.PackageURL, digest)
		}
	})
}

// TestForeignFiles: a directory with other files than a release is not changed.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	mine := filepath.Join(out, "mine")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), io.Discard, "../..", out, nil); err == nil || !strings.Contains(err.Error(), "holds mine, which is no part of a release") {
		t.Errorf("a directory with a file of mine: %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

// TestLicences: a module with a licence that is unknown or not allowed stops a release.
func TestLicences(t *testing.T) {
	t.Parallel()
	known, err := assets.DefaultClassifier()
	if err != nil {
		t.Fatal(err)
	}
	r := release{known: known}
	for licence, want := range map[string]string{
		"Apache-2.0": "",
		"AGPL-3.0":   "example.com/m has the licence AGPL-3.0, which is none of Apache-2.0,",
		"":           "example.com/m has no licence that is known",
	} {
		dir := t.TempDir()
		text, err := os.ReadFile(filepath.Join("..", "..", "LICENSE"))
		if want != "" {
			text, err = assets.ReadLicenseFile("License/AGPL-3.0/license.txt")
		}
		if err != nil {
			t.Fatal(err)
		}
		if licence != "" {
			if err := os.WriteFile(filepath.Join(dir, "LICENSE"), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := r.licensed("example.com/m", "v1.0.0", dir)
		switch {
		case want == "" && (err != nil || !slices.Equal(m.licences, []string{licence}) || len(m.texts) != 1):
			t.Errorf("%s: %q, %v", licence, m.licences, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want an error with %q", licence, err, want)
		}
	}
}

// contents returns the files of a directory.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files, err := tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		all[f.name] = f.data
	}
	return all
}

func keys(files map[string][]byte) []string {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func checkSums(t *testing.T, files map[string][]byte) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(string(files[sumsFile])), "\n")
	if len(lines) != len(files)-1 {
		t.Errorf("%d sums for %d files", len(lines), len(files)-1)
	}
	for _, line := range lines {
		sum, name, _ := strings.Cut(line, "  ")
		if got := fmt.Sprintf("%x", sha256.Sum256(files[name])); got != sum {
			t.Errorf("%s: its sum is %s, not %s", name, got, sum)
		}
	}
}

// unpack extracts a tar archive to a new directory.
func unpack(t *testing.T, r io.Reader) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil { // other users may read the image
		t.Fatal(err)
	}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return root
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d:%d %s", h.Name, h.Uid, h.Gid, h.Uname)
		}
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var data []byte
			if data, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(path, data, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func checkArchive(t *testing.T, data []byte, version string) {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(unpack(t, r), "ratelimitd_"+version+"_linux_"+runtime.GOARCH)
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "ratelimitd"), "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "ratelimitd v"+version+" ") {
		t.Errorf("ratelimitd version prints %q, %v; want %s", out, err, version)
	}
	for name, text := range map[string]string{
		"README.md":                   "systemctl enable --now ratelimitd",
		"LICENSE":                     "Apache License",
		"CHANGELOG.md":                "#",
		"THIRD_PARTY_LICENSES":        "google.golang.org/grpc",
		"completions/_ratelimitd":     "#compdef ratelimitd",
		"completions/ratelimitd.bash": "complete",
		"completions/ratelimitd.fish": "complete -c ratelimitd",
		"config/example/example.yaml": "domain: example",
		"config/reference.yaml":       "domain:",
		"man/ratelimitd.1":            version,
		"man/ratelimitd-block.1":      "127.0.0.1:8081",
		"systemd/ratelimitd.conf":     "RUNTIME_ROOT=/etc/ratelimitd",
		"systemd/ratelimitd.service":  "EnvironmentFile=/etc/ratelimitd/ratelimitd.conf",
	} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(data), text) {
			t.Errorf("%s lacks %q: %v", name, text, err)
		}
	}
}

// checkChart checks that the chart, with its default values, installs the image that the pipeline pushes. tools/manifests renders it.
func checkChart(t *testing.T, data []byte, version string) {
	t.Helper()
	chart, err := loader.LoadArchive(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if m := chart.Metadata; m.Name != "ratelimitd" || m.Version != version || m.AppVersion != version || len(chart.Templates) < 7 {
		t.Errorf("the chart is %+v with %d templates", m, len(chart.Templates))
	}
	image, _ := chart.Values["image"].(map[string]any)
	if image["repository"] != "ghcr.io/ratelimitd/ratelimitd" || image["tag"] != "" {
		t.Errorf("the chart installs %v", image)
	}
}

// checkImage unpacks the image and runs its server as the image's user, in its root directory if this process is
// allowed to.
func checkImage(t *testing.T, data []byte, version string) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(unpack(t, bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	img := only(t, index)
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/bin/ratelimitd"}) || len(c.ExposedPorts) != 4 ||
		c.Labels["org.opencontainers.image.version"] != version || len(c.Labels["org.opencontainers.image.revision"]) != 40 || config.Architecture != runtime.GOARCH {
		t.Errorf("the image is configured as %+v", config)
	}
	files := mutate.Extract(img)
	defer files.Close()
	root := unpack(t, files)
	if pem, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")); err != nil || bytes.Count(pem, []byte("BEGIN CERTIFICATE")) < 50 {
		t.Errorf("the image has too few certificates of authorities: %v", err)
	}
	rules := filepath.Join(root, "rules", "config")
	if err := os.MkdirAll(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rules, "image.yaml"), []byte("domain: image\ndescriptors: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: filepath.Join(root, config.Config.Entrypoint[0]), Args: config.Config.Entrypoint, Dir: root}
	env := testkit.Env(filepath.Join(root, "rules"))
	if os.Geteuid() == 0 {
		cmd.Path, cmd.Dir = config.Config.Entrypoint[0], "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		env = testkit.Env("/rules")
	}
	cmd.Env = env
	d, err := testkit.StartDaemon(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	testkit.Eventually(t, "the server is ready", func() bool {
		status, _, err := testkit.Fetch(t.Context(), http.MethodGet, "http://"+d.At["HTTP"]+"/readyz", "")
		return err == nil && status == http.StatusOK
	}, d.Log.String)
	if err := d.Terminate(); err != nil {
		t.Errorf("%v\n%s", err, d.Log.String())
	}
}

// only returns the single image of an index. Each of the nested indexes must have one entry.
func only(t *testing.T, index v1.ImageIndex) v1.Image { //nolint:ireturn // the library's type
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("an index has %d entries", len(manifest.Manifests))
	}
	entry := manifest.Manifests[0]
	if !entry.MediaType.IsIndex() {
		img, err := index.Image(entry.Digest)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	inner, err := index.ImageIndex(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return only(t, inner)
}

// checkBill checks a bill of ratelimitd. Bills of images have more components than those of programs.
func checkBill(t *testing.T, data []byte, version string, more ...string) (bom cyclonedx.BOM) {
	t.Helper()
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(data), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; c.Name != "ratelimitd" || c.Version != version {
		t.Errorf("the bill is that of %s %s", c.Name, c.Version)
	}
	checkSchema(t, data, bom.SpecVersion.String())
	for _, want := range append(more, "std", "google.golang.org/grpc", "github.com/redis/go-redis/v9") {
		if !slices.ContainsFunc(*bom.Components, func(c cyclonedx.Component) bool { return c.Name == want && c.Licenses != nil && c.Version != "" }) {
			t.Errorf("the bill lacks %s, or its licence", want)
		}
	}
	return bom
}

// checkSchema checks a bill against CycloneDX's JSON schema of a version, which is part of the library that writes bills.
func checkSchema(t *testing.T, data []byte, version string) {
	t.Helper()
	dir, err := output(t.Context(), ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go")
	if err != nil {
		t.Fatal(err)
	}
	const at = "http://cyclonedx.org/schema/"
	compiler := jsonschema.NewCompiler()
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(dir), "schema", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the schemas of CycloneDX are missing: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err == nil {
			err = compiler.AddResource(at+strings.Replace(filepath.Base(file), ".schemax.", ".schema.", 1), schema)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	// Version 1.7 refers to names of algorithms and curves that the library lacks: bills must not contain them.
	if err := compiler.AddResource(at+"cryptography-defs.schema.json", map[string]any{
		"definitions": map[string]any{"algorithmFamiliesEnum": false, "ellipticCurvesEnum": false},
	}); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(at + "bom-" + version + ".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	bill, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err == nil {
		err = schema.Validate(bill)
	}
	if err != nil {
		t.Errorf("the bill is not what CycloneDX %s asks for: %v", version, err)
	}
}
