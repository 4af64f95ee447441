// Package memcachedtest runs real memcached processes for tests, on free ports of 127.0.0.1. They end with the test that
// started them.
package memcachedtest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	program  = "memcached"
	patience = time.Minute // how long to wait for a process to be ready, or to answer
	hangs    = time.Second // a process that does not answer for so long hangs
	attempts = 5           // to find a port that is still free when the process binds it
)

// Server is a memcached process.
type Server struct {
	t     testing.TB
	port  int
	args  []string
	plain bool // it speaks without TLS
	cmd   *exec.Cmd
	said  *output
	done  chan struct{} // closed when cmd has ended
}

// Start starts a server with these arguments in addition to its address, and waits until it accepts connections.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{t: tb, args: args, plain: true}
	for _, a := range args {
		s.plain = s.plain && a != "-Z"
	}
	tb.Cleanup(s.Kill)
	for range attempts {
		s.port = freePort(tb)
		err := s.run()
		if err == nil {
			return s
		}
		if !taken(err) {
			tb.Fatalf("memcachedtest: %v", err)
		}
	}
	tb.Fatalf("memcachedtest: found no free port in %d attempts", attempts)
	return nil
}

// taken reports whether somebody else has the port.
func taken(err error) bool { return strings.Contains(err.Error(), "Address already in use") }

// Addr returns the host:port on which the server listens.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Port returns the port on which the server listens.
func (s *Server) Port() int { return s.port }

// Kill ends the process at once, as a crash would, and waits until it has ended. It does nothing if the process has
// already ended.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // fails only if it has ended
	<-s.done
}

// Stop suspends the process, and waits until it no longer answers. Connections stay up. It is for servers without TLS.
func (s *Server) Stop() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(patience); ; {
		if _, err := s.say("version", hangs); err != nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("memcachedtest: the process answers though it is stopped")
		}
	}
}

// Cont resumes a process that was stopped.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("memcachedtest: signal %v: %v", sig, err)
	}
}

// Restart ends the process if it runs, and starts it again at the same address. Its contents are lost.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	err := s.run()
	for deadline := time.Now().Add(patience); err != nil && taken(err) && time.Now().Before(deadline); err = s.run() {
		time.Sleep(10 * time.Millisecond) // somebody's connection may hold the port for a moment
	}
	if err != nil {
		s.t.Fatalf("memcachedtest: restarting: %v", err)
	}
}

// Say sends a command, with its data, if any, after a line break, and returns the reply without the last line break. It
// is for servers without TLS.
func (s *Server) Say(command string) string {
	s.t.Helper()
	reply, err := s.say(command, patience)
	if err != nil {
		s.t.Fatalf("memcachedtest: %s: %v", command, err)
	}
	return reply
}

func (s *Server) say(command string, within time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), patience) //nolint:noctx // bounded by patience
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // every command has been answered
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.ReplaceAll(command, "\n", "\r\n")); err != nil {
		return "", err
	}
	var lines []string
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		lines = append(lines, strings.TrimRight(line, "\r\n"))
		many := strings.HasPrefix(lines[0], "VALUE ") || strings.HasPrefix(lines[0], "STAT ") || strings.HasPrefix(lines[0], "key=")
		if !many || lines[len(lines)-1] == "END" {
			return strings.Join(lines, "\n"), nil
		}
	}
}

// Items returns the names of all items, and when each expires.
func (s *Server) Items() map[string]time.Time {
	s.t.Helper()
	dump := s.Say("lru_crawler metadump all")
	for deadline := time.Now().Add(patience); strings.HasPrefix(dump, "BUSY") && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		dump = s.Say("lru_crawler metadump all") // its crawler was busy with housekeeping
	}
	items := map[string]time.Time{}
	for line := range strings.Lines(dump) {
		var name, expires string
		if n, err := fmt.Sscanf(line, "key=%s exp=%s", &name, &expires); n < 2 {
			if strings.TrimSpace(line) == "END" {
				continue
			}
			s.t.Fatalf("memcachedtest: an item %q: %v", line, err)
		}
		key, err := url.PathUnescape(name)
		if err != nil {
			s.t.Fatalf("memcachedtest: %v", err)
		}
		seconds, err := strconv.ParseInt(expires, 10, 64)
		if err != nil {
			s.t.Fatalf("memcachedtest: %v", err)
		}
		items[key] = time.Unix(seconds, 0)
	}
	return items
}

// run starts the process and waits until it accepts connections.
func (s *Server) run() error {
	args := append([]string{"-l", "127.0.0.1", "-p", fmt.Sprint(s.port), "-U", "0", "-t", "2"}, s.args...)
	if os.Getuid() == 0 {
		args = append(args, "-u", "root")
	}
	cmd := exec.Command(program, args...) //nolint:noctx // it ends by Kill
	s.said = new(output)
	cmd.Stdout, cmd.Stderr = s.said, s.said
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s, which is in Debian's package of that name: %w", program, err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed, so there is always an error
	}()
	return s.await()
}

// await waits until the process accepts connections.
func (s *Server) await() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		select {
		case <-s.done:
			return fmt.Errorf("%s ended at once:\n%s", program, s.said)
		default:
		}
		if s.answers() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s was not ready after %v:\n%s", program, patience, s.said)
		}
	}
}

// answers reports whether the process accepts connections. Without TLS it also checks that it is this process that
// does: another one may have taken the port, in which case this one logs an error and ends.
func (s *Server) answers() bool {
	if s.plain {
		stats, err := s.say("stats", patience)
		return err == nil && strings.Contains(stats, fmt.Sprintf("STAT pid %d\n", s.cmd.Process.Pid))
	}
	conn, err := net.Dial("tcp", s.Addr()) //nolint:noctx // on loopback
	return err == nil && conn.Close() == nil
}

// output collects what a process writes, and may be read at the same time.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns all output so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// freePort returns a port that was free a moment ago.
func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // does not wait
	if err != nil {
		tb.Fatalf("memcachedtest: %v", err)
	}
	defer func() { _ = l.Close() }() // only its port is wanted
	return l.Addr().(*net.TCPAddr).Port
}
