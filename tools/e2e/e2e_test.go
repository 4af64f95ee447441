package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

var (
	envoy  = flag.String("envoy", "", "the Envoy to play with; by default the one that tools/need finds")
	server = flag.String("server", "", "the ratelimitd to play with; by default it is built")
	peer   = flag.String("peer", "", "another server, such as envoyproxy/ratelimit: the cases that apply to it are played with it too, and not judged")
	page   = flag.String("write", "", "a page whose table is replaced by what was measured")
	seed   = flag.Int64("seed", 0, "random choices follow from it; 0 draws one")
	upTo   = flag.String("play", quick.String(), "the cases to play: "+strings.Join(efforts, ", "))
)

// effort selects the runs that include a case.
type effort int

const (
	quick effort = iota // make test
	most                // .ci/run
	whole               // make e2e
)

var efforts = []string{"quick", "most", "whole"}

func (e effort) String() string { return efforts[e] }

// example is a case with its expected result.
type example struct {
	name string
	want string
	play func(*world)

	since  int    // minor version of Envoy that it requires, as for [since]; 0 means any
	effort effort // the smallest run that includes it
	peer   bool   // whether it applies to another server too
}

// examples returns the cases of a run.
func examples(upTo effort) []example {
	return slices.DeleteFunc(slices.Concat(examplesOfEnvoy(), examplesOfLLM(), charges(), limits(), wirings(), gateways(), failures(), faultsOfRedis(), surges(), quotas(), steady()),
		func(x example) bool { return x.effort > upTo })
}

// program is ratelimitd, unless -server names another one.
var program = testkit.Build{Root: "../..", Packages: []string{"./cmd/ratelimitd"}}

func TestMain(m *testing.M) {
	flag.Parse()
	if *seed == 0 {
		*seed = 1 + rand.Int64N(1_000_000_000)
	}
	var err error
	if !testing.Short() {
		err = prepare()
	}
	code := 2
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = program.Remove()
	os.Exit(code)
}

// prepare finds Envoy and builds the server.
func prepare() error {
	if !slices.Contains(efforts, *upTo) {
		return fmt.Errorf("-play %s: want one of %s", *upTo, strings.Join(efforts, ", "))
	}
	if *envoy == "" {
		found, err := exec.Command("../need", "envoy").Output()
		if err != nil && *upTo != quick.String() {
			return fmt.Errorf("there is no Envoy: %w", err) // tools/need has printed advice
		}
		*envoy = strings.TrimSpace(string(found))
	}
	if *envoy != "" {
		found, err := exec.LookPath(*envoy)
		if err == nil {
			*envoy, err = filepath.Abs(found) // Envoy runs in other directories
		}
		if err != nil {
			return err
		}
	}
	if *server == "" {
		built, err := program.Make()
		if err != nil {
			return err
		}
		*server = filepath.Join(built, "ratelimitd")
	}
	return nil
}

// TestEndToEnd runs the cases, and prints a table of the results.
func TestEndToEnd(t *testing.T) {
	testkit.NotShort(t)
	cases := examples(effort(slices.Index(efforts, *upTo)))
	if *envoy == "" {
		fmt.Printf("SKIPPED: %d cases with a real Envoy, as there is none: see what tools/need envoy says\n", len(cases))
		t.SkipNow()
	}
	var rows []row
	for _, x := range cases {
		r := row{example: x, theirs: result{other: true}}
		t.Run(x.name, func(t *testing.T) { play(t, x, *server, &r.ours) })
		if *peer != "" && x.peer {
			t.Run(x.name+", the other server", func(t *testing.T) { play(t, x, *peer, &r.theirs) })
		}
		if len(r.ours.said) > 0 { // otherwise, -run excludes it
			rows = append(rows, r)
		}
	}
	if t.Failed() || testing.Verbose() || *upTo != quick.String() {
		fmt.Println(table(rows))
	}
	if *page != "" {
		if err := rewrite(*page, table(rows)); err != nil {
			t.Error(err)
		}
	}
}
