package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/cli"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tracingtest"
)

// patience is the timeout of scripts for immediate events.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"ratelimitd": main, "ratelimitd_hurried": hurried, "ratelimit": main, "ratelimit_client": main, "ratelimit_config_check": main})
}

// leakChecked runs the tests, and fails if goroutines are left.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	if signal.Ignored(os.Interrupt) { // as in background jobs of a shell; servers of scripts must receive it
		ignored := make(chan os.Signal, 1)
		signal.Notify(ignored, os.Interrupt)
		defer signal.Stop(ignored)
	}
	code := l.m.Run()
	if err := shipped.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if code == 0 {
		var err error
		if !testkit.Poll(patience, func() bool { err = goleak.Find(); return err == nil }) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// inProcess runs a command in this process, and returns its exit code and standard error.
func inProcess(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	var b strings.Builder
	code = cli.Run(t.Context(), append([]string{"ratelimitd"}, args...), cli.Process{Stdout: io.Discard, Stderr: &b})
	return code, b.String()
}

// Scripts run the real binary: the released build for commands and the test build for servers, so that the race detector only
// slows down servers, which halves the time. In addition to testscript's commands, scripts have
//
//	serve [NAME] [ARG...]      start ratelimitd, or the program NAME, and wait until it is ready; its addresses are
//	                           then in $GRPC, $HTTP and $DEBUG, its process in $PID, and its output in the files
//	                           served and log
//	signal TERM|HUP|INT        send it a signal
//	[!] ended                  wait until it ends, with 0 or (with !) anything else
//	logged REGEXP              wait until its log has a matching line, after lines awaited earlier
//	get [-soon] [-status N] URL [BODY]
//	                           get or post, and print the body; with -soon, repeat until the status matches
//	until URL REGEXP           repeat get until the body matches
//	occupy VARIABLE            occupy a free port, and store it in the variable
//	certificate [-expired] CA CERT KEY [NAME]
//	                           make a CA and a certificate for 127.0.0.1 and the DNS name
//	certificates NAME          make a CA and a certificate for only this DNS name, for a backend and its clients; the files
//	                           are then in $CA, $CERT and $KEY
//	reflect ADDRESS            print the services that the server lists
//	watch ADDRESS              make a call without an end, and wait until the server ends it
//	redis start [LINE...]      start redis-server with these lines of configuration; its host:port is then in $REDIS
//	redis kill|restart|stop|cont
//	                           kill it, start it again without its data, suspend it, resume it
//	redis cli ARG...           run redis-cli, and print its output
//	redis sentinel MASTER [LINE...]
//	                           start a sentinel that watches it; its host:port is then in $SENTINEL
//	memcached start [ARG...]   start memcached with these arguments; its host:port is then in $MEMCACHED
//	memcached kill|restart     kill it, start it again without its data
//	memcached begin COUNT      add a counter with the name printed last
//	memcached say COMMAND      send a command, and print the reply
//	memcached keys             print the names of all items
//	collector http|grpc        start a trace collector; its URL is then in $COLLECTOR
//	spans                      print the received spans as a tree, and then each with its attributes
//	sleep DURATION             only for events that must not be visible outside within some time
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts(t, "testdata/script"))
}

// scripts returns the scripts of a directory.
func scripts(t *testing.T, dir string) testscript.Params {
	t.Helper()
	testkit.NotShort(t)
	commands := shipped.Dir(t)
	return testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", commands+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Values[redisKey{}] = &redisOfScript{tb: t}
			env.Values[memcachedKey{}] = &memcachedOfScript{tb: t}
			return setUp(env)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve":       startServer,
			"signal":      signalServer,
			"ended":       ended,
			"logged":      logged,
			"get":         get,
			"until":       until,
			"occupy":      occupy,
			"certificate": func(ts *testscript.TestScript, _ bool, args []string) { certificate(t, ts, args) },
			"redis":       redisCommand,
			"memcached":   memcachedCommand,
			"sleep":       sleep,
			"collector":   startCollector,
			"spans":       printSpans,

			"certificates": func(ts *testscript.TestScript, _ bool, args []string) { certificates(t, ts, args) },
			"reflect":      reflectCommand,
			"watch":        watch,
		},
	}
}

// setUp prepares the environment of a server on free ports, with in-memory counters and the rules in rules/. Timeouts
// for scripts with Redis allow for a busy machine.
func setUp(env *testscript.Env) error {
	for _, pair := range append(testkit.Env("rules"),
		"GORACE=atexit_sleep_ms=10", // by default, each command takes another second
		"REDIS_TIMEOUT=10s", "REDIS_OP_TIMEOUT=10s", "REDIS_PERSECOND_TIMEOUT=10s", "REDIS_PERSECOND_OP_TIMEOUT=10s",
	) {
		name, value, _ := strings.Cut(pair, "=")
		env.Setenv(name, value)
	}
	env.Values[serverKey{}] = new(running)
	env.Values[collectorKey{}] = new(*tracingtest.Collector)
	return nil
}

type serverKey struct{}

// running is the server of a script.
type running struct {
	*testkit.Daemon

	seen int // bytes of the log already awaited
}

func serverOf(ts *testscript.TestScript) *running { return ts.Value(serverKey{}).(*running) }

func startServer(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) == 0 {
		args = []string{"ratelimitd"}
	}
	r := serverOf(ts)
	if r.Daemon != nil && !r.Over() {
		ts.Fatalf("a server runs already")
	}
	path := ""
	for dir := range strings.SplitSeq(os.Getenv("PATH"), string(os.PathListSeparator)) { // without the released build
		if p := filepath.Join(dir, args[0]); path == "" && isFile(p) {
			path = p
		}
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Dir, cmd.Env = ts.MkAbs("."), environ(ts)
	d, err := testkit.StartDaemon(cmd)
	ts.Check(err)
	*r = running{Daemon: d}
	ts.Defer(func() {
		d.Kill()
		ts.Logf("[log of the server]\n%s", d.Log.String())
	})
	ts.Setenv("PID", fmt.Sprint(d.PID()))
	for name, addr := range d.At {
		ts.Setenv(name, addr)
	}
	r.flush(ts)
}

// flush writes the server's output to files.
func (r *running) flush(ts *testscript.TestScript) {
	ts.Check(os.WriteFile(ts.MkAbs("served"), []byte(r.Stdout.String()), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("log"), []byte(r.Log.String()), 0o600))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// environ returns the environment of the script, which testscript passes only to commands.
func environ(ts *testscript.TestScript) []string {
	ts.Check(ts.Exec("env"))
	return strings.Split(strings.TrimSpace(ts.ReadFile("stdout")), "\n")
}

func signalServer(ts *testscript.TestScript, _ bool, args []string) {
	sig, ok := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "INT": syscall.SIGINT}[strings.Join(args, " ")]
	if !ok {
		ts.Fatalf("signal %q: must be TERM, HUP or INT", args)
	}
	ts.Check(serverOf(ts).Signal(sig))
}

func ended(ts *testscript.TestScript, neg bool, _ []string) {
	r := serverOf(ts)
	testkit.Eventually(ts, "the server ends", r.Over)
	if err := r.Wait(); (err != nil) != neg {
		ts.Fatalf("the server ended with %v", err)
	}
	r.flush(ts)
}

func logged(ts *testscript.TestScript, _ bool, args []string) {
	r, pattern := serverOf(ts), regexp.MustCompile(strings.Join(args, " "))
	testkit.Eventually(ts, fmt.Sprintf("the log matches %v", pattern), func() bool {
		at := pattern.FindStringIndex(r.Log.String()[r.seen:])
		if at != nil {
			r.seen += at[1]
		}
		return at != nil
	})
	r.flush(ts)
}

func get(ts *testscript.TestScript, _ bool, args []string) {
	want, soon := "200", args[0] == "-soon"
	if soon {
		args = args[1:]
	}
	if args[0] == "-status" {
		want, args = args[1], args[2:]
	}
	method, body := http.MethodGet, ""
	if len(args) > 1 {
		method, body = http.MethodPost, args[1]
	}
	var status, answer string
	ask := func() bool {
		status, answer = askPage(ts, method, args[0], body)
		return status == want
	}
	if !ask() && (!soon || !testkit.Poll(patience, ask)) {
		ts.Fatalf("%s: status %s, want %s: %s", args[0], status, want, answer)
	}
	_, err := ts.Stdout().Write([]byte(answer + "\n"))
	ts.Check(err)
}

func askPage(ts *testscript.TestScript, method, url, body string) (status, answer string) {
	code, answer, err := testkit.Fetch(context.Background(), method, url, body)
	ts.Check(err)
	return fmt.Sprint(code), answer
}

// until repeats get until the body matches.
func until(ts *testscript.TestScript, _ bool, args []string) {
	var status, answer string
	pattern := regexp.MustCompile("(?m)" + args[1])
	testkit.Eventually(ts, fmt.Sprintf("%s matches %v", args[0], pattern), func() bool {
		status, answer = askPage(ts, http.MethodGet, args[0], "")
		return pattern.MatchString(answer)
	}, func() string { return status + ": " + answer })
}

func occupy(ts *testscript.TestScript, _ bool, args []string) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { ts.Check(ln.Close()) })
	_, port, err := net.SplitHostPort(ln.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

func sleep(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.Sleep(d)
}
