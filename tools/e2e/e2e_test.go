package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

var (
	envoy  = flag.String("envoy", "", "the Envoy to play with; without one, its filter is played")
	server = flag.String("server", "", "the ratelimitd to play with; without one, it is built")
	peer   = flag.String("peer", "", "another server, such as envoyproxy/ratelimit: cases that apply are played with it too, and not judged")
	page   = flag.String("write", "", "a page whose table is replaced by what was measured")
	seed   = flag.Int64("seed", 0, "what is drawn follows from it; 0 draws one")
	full   = flag.Bool("full", false, "also play what takes more than a moment, or depends on how fast the machine is")
)

// example is a case: what is played, and what is expected of it.
type example struct {
	name string
	want string
	play func(*world)

	slow bool // needs -full
	peer bool // applies to another server too
	real bool // is about Envoy itself
}

func examples() []example {
	var all []example
	for _, group := range [][]example{examplesOfEnvoy(), examplesOfLLM(), failures(), faultsOfRedis(), surges()} {
		all = append(all, group...)
	}
	return all
}

func TestMain(m *testing.M) {
	flag.Parse()
	if *seed == 0 {
		*seed = 1 + rand.Int64N(1_000_000_000)
	}
	dir, err := os.MkdirTemp("", "e2e")
	if err == nil && *envoy != "" {
		if err = exec.Command(*envoy, "--version").Run(); err != nil {
			err = fmt.Errorf("asking Envoy for its version: %w", err)
		}
	}
	if err == nil && *server == "" && !testing.Short() {
		*server = filepath.Join(dir, "ratelimitd")
		var out []byte
		if out, err = exec.Command("go", "build", "-C", "../..", "-o", *server, "./cmd/ratelimitd").CombinedOutput(); err != nil {
			err = fmt.Errorf("building ratelimitd: %w\n%s", err, out)
		}
	}
	code := 2
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// TestEndToEnd plays all cases, and prints a table of what came of them.
func TestEndToEnd(t *testing.T) {
	testkit.NotShort(t)
	var rows []row
	for _, x := range examples() {
		if x.slow && !*full || x.real && *envoy == "" {
			continue
		}
		r := row{example: x, theirs: result{other: true}}
		t.Run(x.name, func(t *testing.T) { play(t, x, *server, &r.ours) })
		if *peer != "" && x.peer {
			t.Run(x.name+", the other server", func(t *testing.T) { play(t, x, *peer, &r.theirs) })
		}
		if len(r.ours.said) > 0 { // otherwise -run leaves it out
			rows = append(rows, r)
		}
	}
	if t.Failed() || testing.Verbose() || *full {
		fmt.Println(table(rows))
	}
	if *page != "" {
		if err := rewrite(*page, table(rows)); err != nil {
			t.Error(err)
		}
	}
}
