package main

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// check is a promise and how it is tried.
type check struct {
	id     string // such as B9
	what   string
	figure string                      // what passes
	peer   bool                        // applies to other servers with the same environment variables too
	play   func(context.Context, *env) // fails by env.must
}

// untimedIDs are those of the checks in which nothing depends on what else the machine does meanwhile; the longest first.
func untimedIDs() []string { return []string{"D27", "A2", "A1", "D25", "D23", "D22"} }

// untimed says whether nothing in the check depends on what else the machine does meanwhile.
func (k check) untimed() bool { return slices.Contains(untimedIDs(), k.id) }

// checks returns all checks in their order. Each group is in a file of its own.
func checks() []check {
	return slices.Concat(correctness(), redisFaults(), topologies(), loads(), badInput(), access())
}

// env is what a check works with: it starts what is needed, which ends with the check, and takes down what was measured.
type env struct {
	*config

	id      string
	program string // the server
	other   bool   // whether program is not ratelimitd
	dir     string // for files, removed afterwards
	rand    *rand.Rand
	result  result

	mu     sync.Mutex // guards what is below, and result
	begin  time.Time
	ends   []func()
	n      int // of files and processes
	ports  proc.Ports
	logs   []string // files
	theirs string   // the processor of processes that are started from now on; empty for any
	toxics *toxiproxy.ApiServer
}

func newEnv(c *config, k check, program string, other bool) (*env, error) {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return nil, err
	}
	program, err = filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	return &env{
		config: c, id: k.id, program: program, other: other, dir: dir, begin: time.Now(),
		rand: rand.New(rand.NewPCG(uint64(c.seed), hash(k.id))),
	}, nil
}

// port returns a port of 127.0.0.1 that is free.
func (e *env) port(ctx context.Context) string {
	port, err := e.ports.Free(ctx)
	e.must(err)
	return port
}

// writeFile writes a file of the check, and returns its path.
func (e *env) writeFile(name string, text []byte) string {
	path := filepath.Join(e.dir, name)
	e.must(os.WriteFile(path, text, 0o600))
	return path
}

// hash makes what checks draw differ.
func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s) // never fails
	return h.Sum64()
}

// must ends the check if there is an error, as FailNow ends a test: it does not return then, and deferred calls are run. In a goroutine of
// [env.together] it ends that one, and together the check.
func (e *env) must(err error) {
	if err == nil {
		return
	}
	file, line := "check.go", 0
	for skip := 1; file == "check.go"; skip++ { // of fail and the like the caller tells more
		_, file, line, _ = runtime.Caller(skip)
		file = filepath.Base(file)
	}
	e.note("ended at %s:%d: %v", file, line, err)
	e.mu.Lock()
	e.result.err = cmp.Or(e.result.err, err) // the first tells most
	e.mu.Unlock()
	runtime.Goexit()
}

// finish calls functions at the same time, and reports whether none of them was ended by must.
func finish(all ...func()) bool {
	var wg sync.WaitGroup
	var finished atomic.Int64
	for _, f := range all {
		wg.Go(func() {
			f()
			finished.Add(1)
		})
	}
	wg.Wait()
	return int(finished.Load()) == len(all)
}

// together calls functions at the same time. It ends the check when one of them did.
func (e *env) together(all ...func()) {
	if !finish(all...) {
		runtime.Goexit()
	}
}

// fail ends the check.
func (e *env) fail(format string, args ...any) { e.must(fmt.Errorf(format, args...)) }

// await waits until f returns true, and ends the check if it does not.
func (e *env) await(ctx context.Context, what string, f func() bool) {
	if _, ok := poll(ctx, patience, f); !ok {
		e.fail("waited in vain for %s", what)
	}
}

// sleep waits for d. It ends the check if ctx is done before.
func (e *env) sleep(ctx context.Context, d time.Duration) { e.must(sleep(ctx, d)) }

// atEnd has f called when the check is over; the last first.
func (e *env) atEnd(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends = append(e.ends, f)
}

func (e *env) close() {
	for _, f := range slices.Backward(e.ends) {
		f()
	}
	_ = os.RemoveAll(e.dir)
}

// note adds a line to the history, which is printed if the check fails.
func (e *env) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	line := fmt.Sprintf("%8.3f s  %s", time.Since(e.begin).Seconds(), fmt.Sprintf(format, args...))
	e.result.history = append(e.result.history, line)
}

// measured takes down a figure that the check depends on: whether it is good, and in words with its number.
func (e *env) measured(good bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !good {
		e.note("NOT MET: %s", text)
		text = "**" + text + "**"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result.figures = append(e.result.figures, text)
	e.result.failed = e.result.failed || !good
}

// published takes down a figure that is published and not asserted.
func (e *env) published(format string, args ...any) { e.measured(true, format, args...) }

// gatherLogs adds the last lines of each process to the history.
func (e *env) gatherLogs() {
	for _, f := range e.logs {
		most := 6
		if strings.HasPrefix(filepath.Base(f), "server") {
			most = 15
		}
		all, err := os.ReadFile(f)
		if err != nil || len(all) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(all)), "\n")
		if len(lines) > most {
			lines = append([]string{fmt.Sprintf("… %d lines …", len(lines)-most)}, lines[len(lines)-most:]...)
		}
		e.result.history = append(e.result.history, filepath.Base(f)+":")
		for _, l := range lines {
			e.result.history = append(e.result.history, "    "+l)
		}
	}
}

// result is what came of a check.
type result struct {
	figures []string
	failed  bool
	err     error // the check could not be played
	history []string
	took    time.Duration
}

func (r *result) pass() bool { return r.err == nil && !r.failed }

// text returns what was measured, in a line.
func (r *result) text() string { return strings.Join(r.measurements(), "; ") }

// measurements returns the figures, and last why the check could not be played, if it could not.
func (r *result) measurements() []string {
	all := slices.Clone(r.figures)
	if r.err != nil {
		all = append(all, "**"+r.err.Error()+"**")
	}
	for i, text := range all {
		all[i] = strings.ReplaceAll(text, "\n", " ")
	}
	return all
}

// tell prints all that is known of a check.
func (r *result) tell(w io.Writer, k check, seed int64, whose string) {
	fmt.Fprintf(w, "\n%s%s, seed %d: %s\n  asked:    %s\n  measured: %s\n", k.id, whose, seed, k.what, k.figure, r.text())
	for _, l := range r.history {
		fmt.Fprintln(w, "  "+l)
	}
	fmt.Fprintln(w)
}

// row returns the row of a check in the table of results: whether each server passed. peer says whether there is another one.
func (p *played) row(peer bool) string {
	row := fmt.Sprintf("| [%s](notes/%s#%s) | %s | %s | %s |", p.id, measurementsName, strings.ToLower(p.id), p.what, p.figure, p.ours.passed())
	switch {
	case p.theirs != nil:
		row += " " + p.theirs.passed() + " |"
	case peer:
		row += " does not apply |"
	}
	return row + "\n"
}

// section returns what was measured in a check, as Markdown.
func (p *played) section() string {
	var text strings.Builder
	fmt.Fprintf(&text, "## %s\n\nWhat happens: %s.\n\nPasses with: %s.\n", p.id, p.what, p.figure)
	servers := []struct {
		name   string
		result *result
	}{{"ratelimitd", &p.ours}, {"the other server", p.theirs}}
	for _, s := range servers {
		if s.result == nil {
			continue
		}
		fmt.Fprintf(&text, "\nPassed by %s: %s, in %.0f s.\n\n", s.name, s.result.passed(), s.result.took.Seconds())
		for _, figure := range s.result.measurements() {
			fmt.Fprintf(&text, "- %s\n", figure)
		}
	}
	return text.String()
}

// passed says whether the check passed.
func (r *result) passed() string { return yes(r.pass()) }

func yes(pass bool) string {
	if pass {
		return "yes"
	}
	return "**no**"
}
