package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// name is the prefix of a release's files.
const name = "ratelimitd"

// self is the module path, which is also the location of its source.
const self = "github.com/ratelimitd/ratelimitd"

// release is the result of building one commit.
type release struct {
	src      string // the checkout
	version  string // the tag without its v
	time     time.Time
	programs []program
	manuals  []file // manual pages and completions
	known    *classifier.Classifier
	licences []module // the modules in any program
	roots    module   // the module with the image's CA certificates
}

// program is ratelimitd for a platform.
type program struct {
	os, arch string
	path     string
	info     *buildinfo.BuildInfo
	image    string // digest of the program's image, once built
}

// newRelease builds the program for each platform below the directory work, and the files that all platforms share.
func newRelease(ctx context.Context, src, work string, platforms []string) (*release, error) {
	committed, err := output(ctx, src, nil, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return nil, fmt.Errorf("a release is made from a checkout with its history: %w", err)
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(committed), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the time of the commit: %w", err)
	}
	r := &release{src: src, time: time.Unix(seconds, 0).UTC()}
	if r.known, err = assets.DefaultClassifier(); err != nil { // once: it takes about a second
		return nil, err
	}
	for _, platform := range platforms {
		p, err := r.build(ctx, work, platform)
		if err != nil {
			return nil, err
		}
		r.programs = append(r.programs, p)
	}
	r.version = strings.TrimPrefix(r.programs[0].info.Main.Version, "v")
	if err := r.describe(ctx, work); err != nil {
		return nil, err
	}
	if r.licences, err = r.modules(ctx); err != nil {
		return nil, err
	}
	roots, err := r.listed(ctx, filepath.Join(src, "tools", "dist"), "golang.org/x/crypto/x509roots/fallback")
	if err != nil {
		return nil, err
	}
	r.roots = roots[0]
	return r, nil
}

// build builds the program for a platform.
func (r *release) build(ctx context.Context, work, platform string) (program, error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return program{}, fmt.Errorf("%q is no platform: write it as linux/amd64", platform)
	}
	p := program{os: goos, arch: goarch, path: filepath.Join(work, goos+"-"+goarch, name)}
	// Set all variables that affect the build, regardless of the environment.
	env := []string{"GOOS=" + goos, "GOARCH=" + goarch, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off"}
	_, err := output(ctx, r.src, env, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w -buildid=", "-o", p.path, "./cmd/ratelimitd")
	if err != nil {
		return p, err
	}
	p.info, err = buildinfo.ReadFile(p.path)
	return p, err
}

// revision returns the commit of the program.
func (p program) revision() string {
	for _, s := range p.info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// describe makes the program write its manual pages and completions.
func (r *release) describe(ctx context.Context, work string) error {
	here := program{os: runtime.GOOS, arch: runtime.GOARCH}
	if i := slices.IndexFunc(r.programs, func(p program) bool { return p.os == here.os && p.arch == here.arch }); i >= 0 {
		here = r.programs[i]
	} else if built, err := r.build(ctx, filepath.Join(work, "here"), here.os+"/"+here.arch); err != nil {
		return err
	} else {
		here = built
	}
	pages := filepath.Join(work, "man")
	// Defaults of flags depend on the environment, so clear it.
	date := fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix())
	if _, err := output(ctx, work, nil, "env", "-i", date, here.path, "manpages", pages); err != nil {
		return err
	}
	err := filepath.WalkDir(pages, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		r.manuals = append(r.manuals, file{name: "man/" + d.Name(), data: data})
		return err
	})
	if err != nil {
		return err
	}
	for shell, path := range map[string]string{"bash": name + ".bash", "zsh": "_" + name, "fish": name + ".fish"} {
		script, err := output(ctx, work, nil, here.path, "completion", shell)
		if err != nil {
			return err
		}
		r.manuals = append(r.manuals, file{name: "completions/" + path, data: []byte(script)})
	}
	return nil
}

// output runs a command and returns its standard output. Errors contain its standard error.
func output(ctx context.Context, dir string, env []string, command string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		said := ""
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			said = ": " + strings.TrimSpace(string(exit.Stderr))
		}
		return "", fmt.Errorf("%s %s: %w%s", command, strings.Join(args, " "), err, said)
	}
	return string(out), nil
}
