package ui

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// picture is a picture of docs/console: a page, its appearance, and the text to wait for.
type picture struct {
	name, page, theme string
	width, height     int64
	says              string
}

func pictures() []picture {
	return []picture{
		{"overview", "overview", "light", 1280, 860, "healthy"},
		{"rules", "rules", "light", 1280, 460, "shop"},
		{"rule", "rule", "dark", 1280, 780, "Most rejected"},
		{"descriptor", "descriptor", "light", 1280, 880, "Refill"},
		{"playground", "playground", "dark", 1280, 980, "12 pass"},
		{"live", "live", "light", 1280, 500, "live"},
		{"overview-narrow", "overview", "dark", 360, 740, "healthy"},
	}
}

// Screenshots writes the pictures of docs/console to a directory. root has the sources of ratelimitd.
func Screenshots(ctx context.Context, root, to string) error {
	s := &shoot{ctx: ctx}
	done := make(chan struct{})
	go func() { //nolint:contextcheck // s has it; this ends where something fails
		defer close(done)
		defer s.end()
		b := testkit.Build{Root: root, Packages: []string{"./cmd/ratelimitd"}}
		dir, err := b.Make()
		if err != nil {
			s.Fatal(err)
		}
		s.take(filepath.Join(dir, "ratelimitd"), to)
		_ = b.Remove()
	}()
	<-done
	return s.err
}

// take takes all pictures.
func (s *shoot) take(binary, dir string) {
	file := filepath.Join(s.TempDir(), "token")
	if err := os.WriteFile(file, []byte("ann: "+token+"\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	d := startBinary(s, binary, "ADMIN_TOKEN_FILE="+file)
	b := open(s, d)
	b.visit("/ui/login")
	b.run(chromedp.SendKeys("#token", token+kb.Enter, chromedp.ByID))
	b.sees("Overview")
	busy(s, binary, d)
	traffic(s, d)
	for _, p := range pictures() {
		i := slices.IndexFunc(pages(), func(of page) bool { return of.name == p.page })
		b.look(p.width, p.height, p.theme)
		b.visit(pages()[i].path)
		if p.page == "rules" || p.page == "rule" { // rates count from the first view of the page
			busy(s, binary, d)
			b.visit(pages()[i].path)
		}
		b.sees(p.says)
		if p.page == "live" {
			busy(s, binary, d)
			b.sees("user=ann")
		}
		var png []byte
		b.run(chromedp.CaptureScreenshot(&png))
		if err := os.WriteFile(filepath.Join(dir, p.name+".png"), png, 0o644); err != nil {
			s.Fatal(err)
		}
	}
}

// shoot implements the helpers of a test for a command.
type shoot struct {
	ctx  context.Context //nolint:containedctx // as in a test
	ends []func()
	err  error
}

func (s *shoot) Helper() {}

func (s *shoot) Context() context.Context { return s.ctx }

func (s *shoot) Cleanup(end func()) { s.ends = append(s.ends, end) }

func (s *shoot) TempDir() string {
	dir, err := os.MkdirTemp("", "screenshots")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) }) // below the directory for temporary files
	return dir
}

func (s *shoot) Error(args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%s", fmt.Sprint(args...))
	}
}

func (s *shoot) Errorf(format string, args ...any) { s.Error(fmt.Sprintf(format, args...)) }

func (s *shoot) Fatal(args ...any) {
	s.Error(args...)
	runtime.Goexit()
}

func (s *shoot) Fatalf(format string, args ...any) { s.Fatal(fmt.Sprintf(format, args...)) }

// end runs the cleanups, last first.
func (s *shoot) end() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}
