// Command demo runs ratelimitd behind a real Envoy on this machine: it starts both with the files of examples/envoy, runs a
// tour of six steps, verifying each, and then serves until Ctrl-C. Run it in the root of the repository:
//
//	make demo                        # builds everything, and finds an Envoy
//	make demo TOUR=only              # ends after the tour; exit code 0 means that each step succeeded
//	make demo DEMO='-edge 12000'     # another port; bin/demo -help lists them
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is the running programs: Envoy, one or two replicas of ratelimitd, and a Redis for two.
type demo struct {
	out    io.Writer
	dir    string // for logs and modified copies of envoy.yaml
	ports  []*port
	client http.Client

	envoyProgram, serverProgram, redisProgram string

	envoy, first, second, redis *proc.Server
}

// port is a port of 127.0.0.1 that must be free.
type port struct {
	name   string // of the flag
	number int
	envoy  bool   // whether envoy.yaml contains it
	of     string // the program that listens on it
}

func usualPorts() []*port {
	return []*port{
		{"edge", 10000, false, "Envoy, for callers"},
		{"admin", 9901, true, "Envoy's admin page"},
		{"app", 10001, true, "the application behind Envoy"},
		{"grpc", 8081, true, "ratelimitd, for Envoy"},
		{"http", 8080, false, "ratelimitd's HTTP"},
		{"debug", 6070, false, "ratelimitd's console"},
		{"second", 8082, false, "a second ratelimitd, in step 7"},
	}
}

// run starts the programs, runs the tour, and serves, depending on args. It stops all programs before it returns.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	d := &demo{out: out, ports: usualPorts(), client: http.Client{Timeout: proc.Patience}}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.StringVar(&d.envoyProgram, "envoy", "envoy", "the Envoy to run")
	flags.StringVar(&d.serverProgram, "server", "bin/ratelimitd", "the ratelimitd to run")
	flags.StringVar(&d.redisProgram, "redis", "redis-server", "the Redis to run")
	tour := flags.String("tour", "then-serve", "then-serve: serve after the tour until Ctrl-C; only: end after it")
	for _, p := range d.ports {
		flags.IntVar(&p.number, p.name, p.number, "port of "+p.of)
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case *tour != "then-serve" && *tour != "only" || flags.NArg() > 0:
		return fmt.Errorf("-tour %s %q: want -tour then-serve, or -tour only, and no other arguments", *tour, flags.Args())
	}
	if err := d.free(ctx); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "ratelimitd-demo-"); err != nil {
		return err
	}
	defer func() {
		for _, s := range d.running() {
			s.Kill()
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			err = errors.New("interrupted")
		default:
			err = fmt.Errorf("%w\nwhat Envoy and ratelimitd printed is in %s", err, d.dir)
			return
		}
		_ = os.RemoveAll(d.dir) // it is below the directory for temporary files
	}()
	begin := time.Now()
	if err := d.tour(ctx); err != nil {
		d.printf("\n")
		return err
	}
	d.printf("\nAll checks passed, in %.1f s.\n", time.Since(begin).Seconds())
	if *tour == "only" {
		return nil
	}
	return d.serve(ctx)
}

// free returns an error that names all ports in use by other programs.
func (d *demo) free(ctx context.Context) error {
	var taken []error
	var others []string
	for _, p := range d.ports {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", d.addr(p.name))
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			why, _ := errors.AsType[syscall.Errno](err)
			taken = append(taken, fmt.Errorf("  %5d  %-32s %w", p.number, p.of, why))
			others = append(others, fmt.Sprintf("-%s %d", p.name, p.number+1000))
		}
	}
	if len(taken) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was started, as it needs these ports (ss -ltnp shows which process has one):\n%w\nto use others: make demo DEMO='%s'",
		errors.Join(taken...), strings.Join(others, " "))
}

// port returns the number of a port by name.
func (d *demo) port(name string) string {
	i := slices.IndexFunc(d.ports, func(p *port) bool { return p.name == name })
	return strconv.Itoa(d.ports[i].number)
}

func (d *demo) addr(name string) string { return "127.0.0.1:" + d.port(name) }

// start starts a program with its output in a file, and waits until it is ready.
func (d *demo) start(ctx context.Context, name string, s *proc.Server) (*proc.Server, error) {
	log, err := os.OpenFile(filepath.Join(d.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	s.Stdout, s.Stderr = log, log // open until the demo ends, because s may be restarted
	return s, s.Start(ctx)
}

// running returns the running programs.
func (d *demo) running() []*proc.Server {
	return slices.DeleteFunc([]*proc.Server{d.envoy, d.first, d.second, d.redis}, func(s *proc.Server) bool { return s == nil })
}

// serve waits for Ctrl-C, or until a program ends.
func (d *demo) serve(ctx context.Context) error {
	d.printf(`
Envoy, two replicas and their Redis go on until Ctrl-C. To try, in another terminal and in a browser:
  curl -i -H 'x-user: dora' http://%s%s
  %s top --addr %s edge
  console     http://%s/ui/
  Envoy       http://%s
  their logs  %s
`, d.addr("edge"), chat, d.serverProgram, d.addr("grpc"), d.addr("debug"), d.addr("admin"), d.dir)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		for _, s := range d.running() {
			if s.Over() && ctx.Err() == nil {
				return fmt.Errorf("%s has ended: %w", s.Program, s.Wait())
			}
		}
	}
}

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

// ratelimitd runs a command of ratelimitd, and prints it with its output, which must contain the words in want.
func (d *demo) ratelimitd(ctx context.Context, command string, want ...string) error {
	cmd := exec.CommandContext(ctx, d.serverProgram, strings.Fields(command)...)
	cmd.Env = []string{"GRPC_PORT=" + d.port("grpc"), "TMPDIR=" + os.TempDir()} // they determine the admin socket
	out, err := cmd.CombinedOutput()
	d.printf("   $ %s %s\n", d.serverProgram, command)
	for line := range strings.Lines(string(out)) {
		d.printf("   %s\n", strings.TrimSpace("| "+line))
	}
	for _, w := range want {
		if err == nil && !strings.Contains(string(out), w) {
			err = fmt.Errorf("should print %q", w)
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", d.serverProgram, command, err)
	}
	return nil
}

// answer is an HTTP response.
type answer struct {
	status int
	retry  string // retry-after
	text   string
}

// get sends a request to a listener as a user.
func (d *demo) get(ctx context.Context, listener, path, user string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.addr(listener)+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("x-user", user)
	resp, err := d.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("retry-after"), string(text)}, errors.Join(err, resp.Body.Close())
}

// stats parses a listener's /stats, which has lines such as "name: 3" in Envoy and ratelimitd.
func (d *demo) stats(ctx context.Context, listener string) (map[string]int, error) {
	page, err := d.get(ctx, listener, "/stats", "")
	all := map[string]int{}
	for line := range strings.Lines(page.text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(value); err == nil {
			all[name] = n
		}
	}
	return all, err
}

// await waits until a number in a listener's /stats reaches least.
func (d *demo) await(ctx context.Context, listener, name string, least int) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		all, err := d.stats(ctx, listener)
		if err != nil || all[name] >= least {
			return err
		}
		if time.Since(begin) > proc.Patience {
			return fmt.Errorf("%s at http://%s/stats should become %d, and is %d", name, d.addr(listener), least, all[name])
		}
	}
}
