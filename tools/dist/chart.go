package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
)

// published returns the repository to which the pipeline pushes the image.
func published() string { return "ghcr.io/" + strings.TrimPrefix(self, "github.com/") }

// chart writes the Helm chart. Its version, and its image's version and repository, are those of the release.
func (r *release) chart(_ context.Context, out string) error {
	c, err := loader.LoadDir(filepath.Join(r.src, "examples", "kubernetes", "chart"))
	if err != nil {
		return err
	}
	c.Metadata.Version, c.Metadata.AppVersion = r.version, r.version
	if err := publish(c); err != nil {
		return err
	}
	c.ModTime, c.SchemaModTime = r.time, r.time
	for _, files := range [][]*common.File{c.Raw, c.Templates, c.Files} {
		for _, f := range files {
			f.ModTime = r.time
		}
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("the chart: %w", err)
	}
	_, err = util.Save(c, out)
	return err
}

// publish replaces the default of image.repository, which in the checkout is the image that `make image` builds.
func publish(c *v2.Chart) error {
	const built = "\n  repository: ratelimitd\n"
	for _, f := range c.Raw {
		if f.Name != util.ValuesfileName {
			continue
		}
		if n := bytes.Count(f.Data, []byte(built)); n != 1 {
			return fmt.Errorf("the chart: values.yaml has %d lines %q, not one", n, strings.TrimSpace(built))
		}
		f.Data = bytes.Replace(f.Data, []byte(built), []byte("\n  repository: "+published()+"\n"), 1)
		return nil
	}
	return errors.New("the chart: it has no values.yaml")
}
