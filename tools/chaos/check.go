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

// check is a promise and a way to test it.
type check struct {
	id     string // such as B9
	what   string
	figure string                      // figure required to pass
	peer   bool                        // also applies to other servers with the same environment variables
	play   func(context.Context, *env) // ends early by env.must
}

// untimedIDs returns the IDs of checks that do not depend on other load of the machine, longest first.
func untimedIDs() []string { return []string{"D27", "A2", "A1", "D25", "D23", "D22"} }

// untimed reports whether the check does not depend on other load of the machine.
func (k check) untimed() bool { return slices.Contains(untimedIDs(), k.id) }

// checks returns all checks in order. Each group has its own file.
func checks() []check {
	return slices.Concat(correctness(), redisFaults(), topologies(), loads(), badInput(), access())
}

// env is the environment of a check. It starts processes, which end with the check, and records figures.
type env struct {
	*config

	id      string
	program string // path of the server
	other   bool   // program is not ratelimitd
	dir     string // for files; removed at the end
	rand    *rand.Rand
	result  result

	mu     sync.Mutex // protects the fields below, and result
	begin  time.Time
	ends   []func()
	n      int // number of processes
	ports  proc.Ports
	logs   []string // paths
	theirs string   // processor for new processes; empty means any
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

// port returns a free port on 127.0.0.1.
func (e *env) port(ctx context.Context) string {
	port, err := e.ports.Free(ctx)
	e.must(err)
	return port
}

// writeFile writes a file for the check, and returns its path.
func (e *env) writeFile(name string, text []byte) string {
	path := filepath.Join(e.dir, name)
	e.must(os.WriteFile(path, text, 0o600))
	return path
}

// hash derives different random numbers for different checks.
func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s) // never fails
	return h.Sum64()
}

// must ends the check if err is not nil, like FailNow in a test: it does not return, and deferred calls run. In a goroutine of
// [env.together] it ends the goroutine, and together ends the check.
func (e *env) must(err error) {
	if err == nil {
		return
	}
	file, line := "check.go", 0
	for skip := 1; file == "check.go"; skip++ { // skip helpers such as fail
		_, file, line, _ = runtime.Caller(skip)
		file = filepath.Base(file)
	}
	e.note("ended at %s:%d: %v", file, line, err)
	e.mu.Lock()
	e.result.err = cmp.Or(e.result.err, err) // keep the first error
	e.mu.Unlock()
	runtime.Goexit()
}

// finish calls functions concurrently, and reports whether none was ended by must.
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

// together calls functions concurrently. It ends the check if must ended one of them.
func (e *env) together(all ...func()) {
	if !finish(all...) {
		runtime.Goexit()
	}
}

// fail ends the check with an error.
func (e *env) fail(format string, args ...any) { e.must(fmt.Errorf(format, args...)) }

// await waits until f returns true. After patience it ends the check.
func (e *env) await(ctx context.Context, what string, f func() bool) {
	if _, ok := poll(ctx, patience, f); !ok {
		e.fail("waited in vain for %s", what)
	}
}

// sleep waits for d. It ends the check if ctx is done first.
func (e *env) sleep(ctx context.Context, d time.Duration) { e.must(sleep(ctx, d)) }

// atEnd registers f to be called at the end of the check, in reverse order.
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

// measured records a figure of the check, and whether it meets its requirement.
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

// published records a figure without a requirement.
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

// result is the result of a check.
type result struct {
	figures []string
	failed  bool
	err     error // the check could not be completed
	history []string
	took    time.Duration
}

func (r *result) pass() bool { return r.err == nil && !r.failed }

// text returns the figures as one line.
func (r *result) text() string { return strings.Join(r.measurements(), "; ") }

// measurements returns the figures, followed by the error that ended the check, if any.
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

// tell prints a check with its figures and history.
func (r *result) tell(w io.Writer, k check, seed int64, whose string) {
	fmt.Fprintf(w, "\n%s%s, seed %d: %s\n  asked:    %s\n  measured: %s\n", k.id, whose, seed, k.what, k.figure, r.text())
	for _, l := range r.history {
		fmt.Fprintln(w, "  "+l)
	}
	fmt.Fprintln(w)
}

// row returns the check's row in the table of results. peer means that there is another server.
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

// section returns the figures of a check as Markdown.
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

// passed returns yes or no.
func (r *result) passed() string { return yes(r.pass()) }

func yes(pass bool) string {
	if pass {
		return "yes"
	}
	return "**no**"
}
