package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// repository is the root of the checkout, in which the documents' commands run.
const repository = "../.."

// TestQuickstart runs the console blocks of docs/quickstart.md and docs/commands.md in order, from `make run` on, and compares the
// outputs with the documents. Then it runs the commands of README.md. The server uses other ports; [volatile] normalizes outputs that
// vary between runs.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	var text string
	for _, name := range []string{"docs/quickstart.md", "docs/commands.md"} {
		raw, err := os.ReadFile(filepath.Join(repository, name))
		testkit.Check(t, err)
		text += string(raw)
	}
	script := strings.Replace(readmeScript(text), "-- output1 --", "README.md\n-- output1 --", 1)
	for _, want := range []string{
		"make run", "curl ", "bin/ratelimitd call ", "bin/ratelimitd block ", "bin/ratelimitd lift ",
		"bin/ratelimitd check ", "bin/ratelimitd explain ", "bin/ratelimitd reset ",
	} {
		if !strings.Contains(script, "\n"+want) {
			t.Errorf("no console block of docs/quickstart.md or docs/commands.md runs %q", want)
		}
	}
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "readme.txtar"), []byte(script))
	r := &readme{ports: map[string]string{"PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0"}}
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"make":           r.makeRun,
			"curl":           r.curl,
			"bin/ratelimitd": r.ratelimitd,
			"shows":          r.shows,
			"README.md":      r.front,
		},
	})
}

// front runs the shell blocks of README.md except `make run`: the fourth call is rejected, `explain` names the rule, and a call passes
// after carol is allowed.
func (r *readme) front(ts *testscript.TestScript, _ bool, _ []string) {
	text, err := os.ReadFile(filepath.Join(repository, "README.md"))
	ts.Check(err)
	blocks := regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 3 || strings.TrimSpace(blocks[0][1]) != "make run" {
		ts.Fatalf("README.md has the shell blocks %q, want make run, a rejection and a control", blocks)
	}
	for _, x := range []struct{ commands, want string }{
		{blocks[1][1], `(?s)^(OK\b.*){3}OVER_LIMIT\b.*\bexample\.fixed\b.*\bexample\.yaml:\d+`},
		{blocks[2][1], `carol`},
		{"bin/ratelimitd call example fixed=carol", `^OK\n`},
	} {
		if out := r.shell(ts, x.commands); !regexp.MustCompile(x.want).MatchString(out) {
			ts.Fatalf("%s\nprints %s\nwant a match of %s", x.commands, out, x.want)
		}
	}
}

// shell runs commands in the repository and returns their output. A rejected call is not a failure.
func (r *readme) shell(ts *testscript.TestScript, commands string) string {
	cmd := exec.Command("sh", "-c", commands)
	cmd.Dir, cmd.Env = repository, r.environ()
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		ts.Check(err)
	}
	return string(out)
}

// readmeScript converts the console blocks of Markdown to a script. A line that begins with "$ " is a command of the
// script; the following lines of the block are a file that the command shows compares with the output.
func readmeScript(markdown string) string {
	var commands, files strings.Builder
	n := 0
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(markdown, -1) {
		for _, step := range regexp.MustCompile(`(?m)^\$ `).Split(block[1], -1)[1:] {
			command, output, _ := strings.Cut(step, "\n")
			n++
			fmt.Fprintf(&commands, "\n%s\nshows output%d\n", command, n)
			fmt.Fprintf(&files, "-- output%d --\n%s", n, output)
		}
	}
	return commands.String() + files.String()
}

// readme runs the commands of the documents.
type readme struct {
	ports  map[string]string // by variable: 0, or the ports of the running server
	output string            // of the last command
}

// environ returns the environment of a command: the test's, with the ports, and without variables that make sets, which
// would affect make commands.
func (r *readme) environ() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	for name, port := range r.ports {
		env = append(env, name+"="+port)
	}
	return env
}

// makeRun runs make until the end of the script. The command returns when the server is ready and has printed its
// addresses.
func (r *readme) makeRun(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // it may build everything
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Dir, cmd.Env = repository, r.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // for make and its child
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	ts.Check(cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()     // a signal ends it, or it prints its error
		_ = writer.Close() // never fails
	}()
	ts.Defer(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // it may have ended
		<-ended
		cancel()
	})
	const last = " call " // the last line has a call to paste
	var output strings.Builder
	lines := bufio.NewScanner(reader)
	for !strings.Contains(output.String(), last) {
		if !lines.Scan() {
			ts.Fatalf("make %v ended before its last line, which has %q:\n%s", args, last, output.String())
		}
		output.WriteString(lines.Text() + "\n")
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	r.output = output.String()
	at := testkit.Addresses(r.output)
	for variable, listener := range map[string]string{"PORT": "HTTP", "GRPC_PORT": "GRPC", "DEBUG_PORT": "DEBUG"} {
		var err error
		_, r.ports[variable], err = net.SplitHostPort(at[listener])
		ts.Check(err)
	}
}

// curl performs curl -s URL -d BODY, because machines may lack curl.
func (r *readme) curl(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 4 || args[0] != "-s" || args[2] != "-d" {
		ts.Fatalf("curl %q: this test knows curl -s URL -d BODY", args)
	}
	url := strings.Replace(args[1], ":8080/", ":"+r.ports["PORT"]+"/", 1)
	_, body, err := testkit.Fetch(context.Background(), http.MethodPost, url, args[3])
	ts.Check(err)
	var compact bytes.Buffer // protojson varies blanks between fields with the hash of the binary
	ts.Check(json.Compact(&compact, []byte(body)))
	r.output = compact.String() + "\n"
}

// ratelimitd runs the binary that make built. A rejected call is not a failure.
func (r *readme) ratelimitd(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.Command("bin/ratelimitd", args...)
	cmd.Path = filepath.Join(repository, cmd.Path)
	cmd.Path, cmd.Err = filepath.Abs(cmd.Path)
	cmd.Dir, cmd.Env = repository, r.environ()
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		ts.Check(err)
	}
	r.output = string(out)
}

// shows compares the output of the last command with the document.
func (r *readme) shows(ts *testscript.TestScript, _ bool, args []string) {
	got := r.output
	for name, usual := range map[string]string{"PORT": "8080", "GRPC_PORT": "8081", "DEBUG_PORT": "6070"} {
		got = strings.ReplaceAll(got, ":"+r.ports[name], ":"+usual)
	}
	// Default ports need no flags.
	got = strings.NewReplacer("--addr 127.0.0.1:8081 ", "", "GRPC_PORT="+r.ports["GRPC_PORT"]+" ", "").Replace(got)
	if diff := cmp.Diff(volatile(ts.ReadFile(args[0])), volatile(got)); diff != "" {
		ts.Fatalf("the page shows something else (-page +got):\n%s\nin full:\n%s", diff, got)
	}
}

// volatile replaces times, versions, IDs, and durations in output by words.
func volatile(output string) string {
	for _, v := range []struct{ pattern, word string }{
		{`time=\S+`, "time=TIME"},
		{`\b\d{4}-\d\d-\d\dT\S+Z\b`, "TIME"},
		{`\b(\d{4}-\d\d-\d\d )?\d\d:\d\d UTC\b`, "TIME"},
		{`\b[0-9a-f]{16}\b`, "ID"},
		{`/\S*ratelimitd-\d+/\d+(-\d+)?\.sock`, "SOCKET"},
		{`ratelimitd (v\d\S*|\(devel\)) go\S+`, "ratelimitd VERSION"},
		{`\b(\d+(\.\d+)?(h|m|s|ms|µs))+\b`, "SPAN"},
	} {
		output = regexp.MustCompile(v.pattern).ReplaceAllString(output, v.word)
	}
	return output
}
