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

// repository is the root of the checkout, where the commands of the documents are meant to be run.
const repository = "../.."

// TestQuickstart runs the console blocks of docs/quickstart.md and then those of docs/commands.md one after the other, from `make run`
// on, and compares what the commands print with what is shown there. Then it runs the commands of README.md. The server is on ports of its own; what differs from one run to the next
// is compared by [volatile] alone.
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

// front runs the shell blocks of README.md, but for `make run`: the fourth call is rejected, `explain` names the rule, and a call passes once
// carol is let through.
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

// shell runs commands in the repository, and returns what they print. That a call is rejected is no failure.
func (r *readme) shell(ts *testscript.TestScript, commands string) string {
	cmd := exec.Command("sh", "-c", commands)
	cmd.Dir, cmd.Env = repository, r.environ()
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		ts.Check(err)
	}
	return string(out)
}

// readmeScript makes a script of the console blocks in Markdown. A line that begins with "$ " is a command of the
// script, and what follows it in the block is a file that "shows" compares with its output.
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
	ports  map[string]string // by variable: 0, and once the server runs those that it has
	output string            // of the command that ran last
}

// environ is the environment of a command: the test's, with the ports. Variables that make sets for its children would
// change how a make among them runs.
func (r *readme) environ() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	for name, port := range r.ports {
		env = append(env, name+"="+port)
	}
	return env
}

// makeRun runs make until the end of the script. The command is over once the server is ready and has said where.
func (r *readme) makeRun(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // it may have to build everything
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Dir, cmd.Env = repository, r.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // make and its child
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	ts.Check(cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()     // a signal ends it, or it says itself what went wrong
		_ = writer.Close() // never fails
	}()
	ts.Defer(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // it may have ended
		<-ended
		cancel()
	})
	const last = " call " // the last line is a call to paste
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

// curl posts, as curl -s URL -d BODY does, which machines need not have.
func (r *readme) curl(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 4 || args[0] != "-s" || args[2] != "-d" {
		ts.Fatalf("curl %q: this test knows curl -s URL -d BODY", args)
	}
	url := strings.Replace(args[1], ":8080/", ":"+r.ports["PORT"]+"/", 1)
	_, body, err := testkit.Fetch(context.Background(), http.MethodPost, url, args[3])
	ts.Check(err)
	var compact bytes.Buffer // protojson puts blanks between the fields, or none, as the hash of the binary has it
	ts.Check(json.Compact(&compact, []byte(body)))
	r.output = compact.String() + "\n"
}

// ratelimitd runs the binary that make has built. That a call is rejected is no failure.
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

// shows compares what the last command printed with what the page shows.
func (r *readme) shows(ts *testscript.TestScript, _ bool, args []string) {
	got := r.output
	for name, usual := range map[string]string{"PORT": "8080", "GRPC_PORT": "8081", "DEBUG_PORT": "6070"} {
		got = strings.ReplaceAll(got, ":"+r.ports[name], ":"+usual)
	}
	// The usual port needs neither.
	got = strings.NewReplacer("--addr 127.0.0.1:8081 ", "", "GRPC_PORT="+r.ports["GRPC_PORT"]+" ", "").Replace(got)
	if diff := cmp.Diff(volatile(ts.ReadFile(args[0])), volatile(got)); diff != "" {
		ts.Fatalf("the page shows something else (-page +got):\n%s\nin full:\n%s", diff, got)
	}
}

// volatile makes output comparable: times, versions, IDs and spans of time become words.
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
