// Command dist makes what a release consists of from a checkout of ratelimitd: for each platform an archive with the
// program, its manual pages, completions and systemd unit; an image for containers; the Helm chart; bills of materials
// and checksums. It needs Go and Git, and no container engine.
//
// The same commit, built with the same Go, gives the same bytes wherever it is built: no time but that of the commit and
// no path of the machine goes into anything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

// released are the platforms of a release.
const released = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	src := flag.String("src", ".", "the `directory` of the checkout")
	out := flag.String("out", "dist", "the `directory` to write to, which must not hold anything else")
	platforms := flag.String("platforms", released, "the `platforms` to build for")
	flag.Parse()
	if err := run(ctx, os.Stdout, *src, *out, strings.Split(*platforms, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "dist: %v\n", err)
		os.Exit(1)
	}
}

// run makes everything in the directory out from the checkout src, and says so on stdout.
func run(ctx context.Context, stdout io.Writer, src, out string, platforms []string) error {
	if err := clear(out); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "dist")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	r, err := newRelease(ctx, src, work, platforms)
	if err != nil {
		return err
	}
	for _, make := range []func(context.Context, string) error{r.archives, r.image, r.chart, r.bills, sums} {
		if err := make(ctx, out); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s of ratelimitd is in %s\n", r.version, out)
	return nil
}

// clear empties the directory, if it holds nothing but an earlier release, or makes it.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), name) && e.Name() != sumsFile {
			return fmt.Errorf("%s holds %s, which is no part of a release: choose another directory with -out", dir, e.Name())
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.MkdirAll(dir, 0o755)
}
