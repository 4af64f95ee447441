package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image writes an image for the Linux platforms. It contains only the program, which includes time zones, and CA
// certificates. The image is an archived OCI layout for skopeo, podman, crane, and, with the containerd image store,
// docker load.
func (r *release) image(_ context.Context, out string) error {
	certificates := authorities()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, p := range r.programs {
		if p.os != "linux" {
			continue
		}
		img, err := r.imageOf(p, certificates)
		if err != nil {
			return err
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		r.programs[i].image = digest.String()
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	tag := strings.ReplaceAll(r.version, "+", "-") // not allowed in tags
	if err := at.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
		return err
	}
	files, err := tree(dir)
	if err != nil {
		return err
	}
	packed, err := pack(files, r.time)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, fmt.Sprintf("%s_%s_image.tar", name, r.version)), packed, 0o644)
}

// imageOf returns the image for one platform.
func (r *release) imageOf(p program, certificates []byte) (v1.Image, error) { //nolint:ireturn // the library's type
	binary, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	root, err := pack([]file{
		{name: "bin/ratelimitd", data: binary, program: true},
		// Under these names, it behaves like envoyproxy/ratelimit's programs; see the Dockerfile.
		{name: "bin/ratelimit", link: name},
		{name: "bin/ratelimit_client", link: name},
		{name: "bin/ratelimit_config_check", link: name},
		{name: "etc/ssl/certs/ca-certificates.crt", data: certificates},
		{name: "licenses/THIRD_PARTY_LICENSES", data: texts(append(slices.Clone(r.licences), r.roots))},
	}, r.time)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "tools/dist"},
	})
	if err != nil {
		return nil, err
	}
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User:         "65532:65532",
		Entrypoint:   []string{"/bin/ratelimitd"},
		Env:          []string{"PATH=/bin"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}, "6070/tcp": {}, "9090/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":       name,
			"org.opencontainers.image.description": "A rate limit service for Envoy, Istio and gRPC clients",
			"org.opencontainers.image.version":     r.version,
			"org.opencontainers.image.created":     r.time.Format(time.RFC3339),
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      "https://" + self,
			"org.opencontainers.image.revision":    p.revision(),
		},
	}
	return mutate.ConfigFile(img, config)
}

// authorities returns the unconditional CA certificates of Mozilla's list in PEM.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer never fails
	}
	return out.Bytes()
}

// tree returns the files below a directory.
func tree(dir string) ([]file, error) {
	var files []file
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		files = append(files, file{name: path, data: data})
		return err
	})
	return files, err
}
