package proc_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// at returns a Ready function that waits for a word in the server's output.
func at(said *testkit.Buffer, word string) func(context.Context) error {
	return func(context.Context) error {
		if strings.Contains(said.String(), word) {
			return nil
		}
		return errors.New("it has not said " + word)
	}
}

// TestServer checks that a server can be restarted after Kill and after Stop, that neither counts as died, and that its memory is
// readable while it runs.
func TestServer(t *testing.T) {
	testkit.NotShort(t)
	t.Parallel()
	var said, again testkit.Buffer
	s := &proc.Server{
		Program: "sh", Args: []string{"-c", `trap "echo bye; exit" TERM; echo "$WORD"; while :; do sleep 0.01; done`},
		Env: append(os.Environ(), "WORD=hello"), Processors: "0-1023", Stdout: &said, Ready: at(&said, "hello"),
	}
	if s.Kill(); s.Died() {
		t.Error("a server that was not started has died")
	}
	t.Cleanup(s.Kill)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Memory("VmRSS"); n < 4096 || err != nil {
		t.Errorf("a shell has %d bytes of memory, %v", n, err)
	}
	first := s.PID()
	s.Kill()
	if n, err := s.Memory("VmRSS"); err == nil {
		t.Errorf("a killed shell has %d bytes of memory, want an error", n)
	}
	if !s.Over() || s.Died() {
		t.Errorf("killed: over %t, died %t", s.Over(), s.Died())
	}
	s.Stdout, s.Ready = &again, at(&again, "hello")
	if err := s.Start(t.Context()); err != nil || s.PID() == first {
		t.Fatalf("started again: %v, process %d after %d", err, s.PID(), first)
	}
	if _, err := s.Stop(); err != nil || s.Died() || s.Wait() != nil || again.String() != "hello\nbye\n" {
		t.Errorf("stopped: %v, died %t, ended with %v, said %q", err, s.Died(), s.Wait(), again.String())
	}
}

// TestServerEnds checks that a server that ends before it is ready counts as died, and that the error contains the reason.
func TestServerEnds(t *testing.T) {
	testkit.NotShort(t)
	t.Parallel()
	s := &proc.Server{Program: "sh", Args: []string{"-c", "exit 3"}, Ready: at(new(testkit.Buffer), "hello")}
	if err := s.Start(t.Context()); err == nil || err.Error() != "sh has ended; it was not ready: it has not said hello" || !s.Died() {
		t.Errorf("%v, died %t", err, s.Died())
	}
	if err := (&proc.Server{Program: "/nowhere/sh"}).Start(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestReady tests Answers without an answer, with a bad one, and with a good one.
func TestReady(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "later")
		}
	}))
	defer s.Close()
	addr := s.Listener.Addr().String()
	if err := errors.Join(proc.Listens(addr)(t.Context()), proc.Answers(s.URL)(t.Context())); err != nil {
		t.Error(err)
	}
	if err := proc.Answers(s.URL + "/bad")(t.Context()); err == nil || !strings.Contains(err.Error(), "/bad says 503") {
		t.Errorf("a bad answer: %v", err)
	}
	if body, err := proc.Get(t.Context(), s.URL+"/bad"); body != "later" || err == nil {
		t.Errorf("a page with status 503: %q, %v", body, err)
	}
	port, err := new(proc.Ports).Free(t.Context()) // that of a closed server may be another one's by now
	if err != nil {
		t.Fatal(err)
	}
	if nobody := "127.0.0.1:" + port; proc.Listens(nobody)(t.Context()) == nil || proc.Answers("http://"+nobody)(t.Context()) == nil {
		t.Error("a server that is not there answers")
	}
}

// TestServes: a service has ports of its own, and what its owner sets takes precedence.
func TestServes(t *testing.T) {
	t.Parallel()
	var s proc.Server
	at, err := s.Serves(t.Context(), new(proc.Ports), "/rules", "DRAIN_DELAY=1s")
	if err != nil || at.GRPC == at.HTTP || at.HTTP == at.Debug {
		t.Fatalf("%+v, %v", at, err)
	}
	env := strings.Join(s.Env, "\n")
	_, port, _ := strings.Cut(at.GRPC, ":")
	if !strings.Contains(env, "GRPC_PORT="+port) || strings.LastIndex(env, "DRAIN_DELAY=1s") < strings.LastIndex(env, "DRAIN_DELAY=0s") {
		t.Errorf("the environment is\n%s", env)
	}
}

// TestSeries: comments, and values that are no numbers, are no series.
func TestSeries(t *testing.T) {
	t.Parallel()
	got := proc.Series("# HELP x_total x 1\nx_total{a=\"b c\"} 2\n\ny 1e3\nz ?\n")
	if want := map[string]float64{`x_total{a="b c"}`: 2, "y": 1000}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestBusy: processor time grows while a process works.
func TestBusy(t *testing.T) {
	t.Parallel()
	before, err := proc.Busy(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "two ticks of work", func() bool {
		after, err := proc.Busy(os.Getpid())
		return err == nil && after >= before+2*proc.Tick
	})
	if d, err := proc.Busy(-1); err == nil {
		t.Errorf("a process that is not there was busy for %v", d)
	}
}

// TestFree checks that no port is returned twice, and that none is ephemeral.
func TestFree(t *testing.T) {
	t.Parallel()
	var ports proc.Ports
	given := map[string]bool{}
	for range 1000 {
		port, err := ports.Free(t.Context())
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 10_000 || n > 32_000 || given[port] {
			t.Fatalf("port %q, %v, after %d others", port, err, len(given))
		}
		given[port] = true
	}
	ports.After(32_000)
	if port, err := ports.Free(t.Context()); err != nil || port < "10000" || port > "10999" {
		t.Errorf("after the last port comes %s, %v, want one of the first", port, err)
	}
}

// TestKillEndsChildren checks that the children of a killed process no longer write files.
func TestKillEndsChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // otherwise its removal would fail
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do i=$((i+1)); : >f$i; done & wait")
	cmd.Dir = dir
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "files", func() bool {
		_, err := os.Stat(filepath.Join(dir, "f100"))
		return err == nil
	})
	p.Kill()
	count := func() int {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	before := count()
	time.Sleep(50 * time.Millisecond)
	if after := count(); after != before {
		t.Errorf("%d files were written after the end", after-before)
	}
}
