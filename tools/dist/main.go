// Command dist builds a release from a checkout of ratelimitd: for each platform, an archive with the program, its
// manual pages, completions, and systemd unit; a container image; the Helm chart; bills of materials; and checksums. It
// requires Go and Git, but no container engine.
//
// The same commit, built with the same version of Go, results in the same bytes everywhere: the files contain no time
// other than the commit's, and no path of the machine.
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

// released lists the platforms of a release.
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

// run builds everything from the checkout src in the directory out, and reports it on stdout.
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

// clear creates the directory, or empties it if it contains only an earlier release.
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
