package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// allowed returns the permitted licences of dependencies by SPDX name.
func allowed() []string {
	return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "Unlicense"}
}

// legal matches the names of licence files.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// module is a third-party module in the programs.
type module struct {
	path, version string
	licences      []string // names in SPDX
	texts         [][]byte // files, each preceded by its name
}

// modules returns the modules in the programs and Go's standard library, with their licences. An unknown licence, or
// one that is not allowed(), is an error.
func (r *release) modules(ctx context.Context) ([]module, error) {
	var paths []string
	for _, p := range r.programs {
		for _, dep := range p.info.Deps {
			paths = append(paths, dep.Path)
		}
	}
	slices.Sort(paths)
	all, err := r.listed(ctx, r.src, slices.Compact(paths)...)
	if err != nil {
		return nil, err
	}
	goroot, err := output(ctx, r.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std, err := r.licensed("std", strings.TrimPrefix(r.programs[0].info.GoVersion, "go"), strings.TrimSpace(goroot))
	if err != nil {
		return nil, err
	}
	return slices.Insert(all, 0, std), nil
}

// listed returns modules that a directory's go.mod requires, with their licences.
func (r *release) listed(ctx context.Context, dir string, paths ...string) (all []module, err error) {
	text, err := output(ctx, dir, nil, "go", append([]string{"list", "-m", "-json"}, paths...)...)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
		var m struct{ Path, Version, Dir string }
		if err := d.Decode(&m); err != nil {
			return nil, err
		}
		one, err := r.licensed(m.Path, m.Version, m.Dir)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// licensed reads the licence files of a module's directory.
func (r *release) licensed(path, version, dir string) (module, error) {
	m := module{path: path, version: version}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	for _, e := range entries {
		if e.IsDir() || !legal.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return m, err
		}
		m.texts = append(m.texts, slices.Concat([]byte(e.Name()+"\n\n"), bytes.TrimSpace(text), []byte("\n")))
		for _, match := range r.known.Match(text).Matches {
			if match.MatchType == "License" && !slices.Contains(m.licences, match.Name) {
				m.licences = append(m.licences, match.Name)
			}
		}
	}
	if len(m.licences) == 0 {
		return m, fmt.Errorf("%s has no licence that is known: see %s", path, dir)
	}
	for _, l := range m.licences {
		if !slices.Contains(allowed(), l) {
			return m, fmt.Errorf("%s has the licence %s, which is none of %s: see %s", path, l, strings.Join(allowed(), ", "), dir)
		}
	}
	return m, nil
}

// texts returns the licences of all modules as text.
func texts(all []module) []byte {
	var out bytes.Buffer
	for _, m := range all {
		fmt.Fprintf(&out, "%s\n%s %s (%s)\n", strings.Repeat("=", 80), m.path, m.version, strings.Join(m.licences, ", "))
		for _, text := range m.texts {
			fmt.Fprintf(&out, "\n%s", text)
		}
	}
	return out.Bytes()
}

// bills writes a bill of materials in CycloneDX's JSON for each program and each image.
func (r *release) bills(_ context.Context, out string) error {
	for _, p := range r.programs {
		binary, err := os.ReadFile(p.path)
		if err != nil {
			return err
		}
		platform := p.os + "_" + p.arch
		if err := r.writeBill(out, platform, r.bill(p, sha256.Sum256(binary))); err != nil {
			return err
		}
		if p.image == "" {
			continue
		}
		if err := r.writeBill(out, "image_"+platform, r.billOfImage(p, sha256.Sum256(binary))); err != nil {
			return err
		}
	}
	return nil
}

// writeBill writes the bill of materials for a platform.
func (r *release) writeBill(out, platform string, bom *cyclonedx.BOM) error {
	f, err := os.Create(filepath.Join(out, fmt.Sprintf("%s_%s_%s.cdx.json", name, r.version, platform)))
	if err != nil {
		return err
	}
	err = cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return errors.Join(err, f.Close())
}

// bill returns the bill of materials of a program.
func (r *release) bill(p program, digest [sha256.Size]byte) *cyclonedx.BOM {
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: r.time.Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: r.version,
			PackageURL: fmt.Sprintf("pkg:golang/%s@v%s?goos=%s&goarch=%s#cmd/ratelimitd", self, r.version, p.os, p.arch),
			Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(digest[:])}},
			Licenses:   choices([]string{"Apache-2.0"}),
		},
	}
	var components []cyclonedx.Component
	var refs []string
	for _, m := range r.licences {
		if m.path != "std" && !slices.ContainsFunc(p.info.Deps, func(dep *debug.Module) bool { return dep.Path == m.path }) {
			continue
		}
		c := m.component()
		refs = append(refs, c.BOMRef)
		components = append(components, c)
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: name, Dependencies: &refs}}
	return bom
}

// billOfImage returns the bill of materials of a program's image: the components of the program, the program itself, and
// the CA certificates.
func (r *release) billOfImage(p program, digest [sha256.Size]byte) *cyclonedx.BOM {
	bom := r.bill(p, digest)
	inside := *bom.Metadata.Component
	certificates := r.roots.component()
	const image = "image"
	bom.Metadata.Component = &cyclonedx.Component{
		BOMRef: image, Type: cyclonedx.ComponentTypeContainer, Name: name, Version: r.version,
		PackageURL: fmt.Sprintf("pkg:oci/%s@%s?arch=%s", name, url.QueryEscape(p.image), p.arch),
	}
	*bom.Components = append(*bom.Components, inside, certificates)
	*bom.Dependencies = append(*bom.Dependencies, cyclonedx.Dependency{Ref: image, Dependencies: &[]string{inside.BOMRef, certificates.BOMRef}})
	return bom
}

// component returns a module as a component of a bill.
func (m module) component() cyclonedx.Component {
	at := fmt.Sprintf("pkg:golang/%s@%s", m.path, m.version)
	return cyclonedx.Component{
		BOMRef: at, Type: cyclonedx.ComponentTypeLibrary, Name: m.path, Version: m.version, PackageURL: at, Licenses: choices(m.licences),
	}
}

// choices converts licences for CycloneDX.
func choices(ids []string) *cyclonedx.Licenses {
	var list cyclonedx.Licenses
	for _, id := range ids {
		list = append(list, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &list
}
