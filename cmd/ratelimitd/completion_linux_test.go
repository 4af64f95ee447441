package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// bashCompletion is what cobra's script for bash needs.
const bashCompletion = "/usr/share/bash-completion/bash_completion"

// goodDomain has a domain and a key that can be completed, and a key that cannot.
const goodDomain = `domain: abc.d
descriptors: [{key: user, value: e.g, rate_limit: {unit: day, requests_per_unit: 1}}, {key: "user$(touch${IFS}run)", rate_limit: {unit: day, requests_per_unit: 1}}]
`

// TestCompletion has real shells, on a terminal, complete domains and keys that are as hostile as rules can be.
func TestCompletion(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	rules := t.TempDir()
	for i, name := range []string{"x$(touch${IFS}run)1", "x$(touch${IFS}run)2", "w`touch${IFS}run`1", "y;touch run;1", "y;touch run;2", "'z$(touch${IFS}run)"} {
		text := "domain: " + fmt.Sprintf("%q", name) + "\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
		certstest.Write(t, filepath.Join(rules, fmt.Sprint(i)), []byte(text))
	}
	certstest.Write(t, filepath.Join(rules, "good"), []byte(goodDomain))
	d := startCommand(t, exec.Command(shipped.Path(t, "ratelimitd")), rules, "ADMIN=true") //nolint:noctx // it ends by a signal
	for _, shell := range []struct {
		name, load string
		args       []string
	}{
		{"bash", "PS1='$ '; bind 'set bell-style none'; . " + bashCompletion + "; . <(ratelimitd completion bash)", []string{"--noprofile", "--norc", "-i"}},
		{"zsh", "PS1='$ '; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; . <(ratelimitd completion zsh)", []string{"-f", "-i"}},
		{"fish", "ratelimitd completion fish | source", []string{"-N", "-i"}},
	} {
		t.Run(shell.name, func(t *testing.T) {
			t.Parallel()
			_, err := exec.LookPath(shell.name)
			if _, missing := os.Stat(bashCompletion); shell.name == "bash" && err == nil {
				err = missing
			}
			if err != nil {
				t.Logf("%s is left out: %v", shell.name, err)
				return
			}
			cmd := exec.Command(shell.name, shell.args...) //nolint:noctx // it is killed
			cmd.Dir = t.TempDir()
			cmd.Env = []string{
				"PATH=" + filepath.Dir(shipped.Path(t, "ratelimitd")) + ":" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "TERM=xterm", "LC_ALL=C.UTF-8",
				"RATELIMITD_ADDR=" + d.At["GRPC"],
			}
			tty := onTerminal(t, cmd)
			tty.enter(shell.load)
			tty.enter("echo loa''ded")
			tty.await("loaded")
			for _, typed := range []string{"x\t1 \t", "y\t1 \t", "w\t \t", "\t\t", "\\'z\t \t", "abc.d user$\t\t"} {
				tty.enter("\x15ratelimitd peek " + typed + "\x15echo do''ne")
				tty.await("done")
			}
			tty.enter("\x15ratelimitd peek a\tu\t --help; echo do''ne") // the words complete
			tty.await("done")
			if said := tty.said(); !strings.Contains(said, "peek abc.d ") || !strings.Contains(said, "user=e.g") {
				t.Errorf("abc.d user=e.g was not completed:\n%q", said)
			}
			if left, err := filepath.Glob(filepath.Join(cmd.Dir, "run*")); err != nil || len(left) > 0 {
				t.Errorf("what a domain is called was run (%v):\n%q", err, tty.said())
			}
		})
	}
}

// teletype is what a program on a terminal is typed to, and has printed.
type teletype struct {
	t      *testing.T
	master *os.File
	out    testkit.Buffer
	waited int // bytes of out that were waited for
}

// onTerminal starts a program on a terminal of its own. It is killed when the test ends.
func onTerminal(t *testing.T, cmd *exec.Cmd) *teletype {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	testkit.Check(t, err)
	fd := int(master.Fd()) //nolint:gosec // a descriptor
	testkit.Check(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	testkit.Check(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	testkit.Check(t, err)
	testkit.Check(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 500}))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	testkit.Check(t, cmd.Start())
	_ = slave.Close() // the program has it
	tty := &teletype{t: t, master: master}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			_, _ = tty.out.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()                  // it was killed
		proc.KillGroup(cmd.Process.Pid) // fish writes completions in the background
		_ = master.Close()
		<-read
	})
	return tty
}

func (tty *teletype) said() string { return tty.out.String() }

// enter types a line.
func (tty *teletype) enter(line string) {
	tty.t.Helper()
	if _, err := tty.master.WriteString(line + "\r"); err != nil {
		tty.t.Fatal(err)
	}
}

// await waits until the program prints a text, after those waited for before.
func (tty *teletype) await(text string) {
	tty.t.Helper()
	testkit.Eventually(tty.t, text, func() bool {
		said := tty.said()[tty.waited:]
		i := strings.Index(said, text)
		if i >= 0 {
			tty.waited += i + len(text)
		}
		return i >= 0
	}, tty.said)
}
