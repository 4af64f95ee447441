package main

import (
	"context"
	"fmt"
	"path/filepath"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
)

// chart writes the Helm chart, with the version of the release as its own and as that of the image.
func (r *release) chart(_ context.Context, out string) error {
	c, err := loader.LoadDir(filepath.Join(r.src, "examples", "kubernetes", "chart"))
	if err != nil {
		return err
	}
	c.Metadata.Version, c.Metadata.AppVersion = r.version, r.version
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
