package proc

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the machine of a measurement.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
}

// String describes the machine, such as "2 cores of AMD EPYC with Linux 6.18".
func (m Machine) String() string {
	return fmt.Sprintf("%d cores of %s with %s", m.Cores, m.CPU, m.Kernel)
}

// ThisMachine describes this machine.
func ThisMachine() Machine {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU()}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer func() { _ = f.Close() }()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// Built returns the commit of a Go program, and the version of its compiler.
func Built(program string) (commit, compiler string, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", "", err
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	commit = set["vcs.revision"]
	if len(commit) > 12 {
		commit = commit[:12]
	}
	switch {
	case commit == "":
		commit = "unknown"
	case set["vcs.modified"] == "true":
		commit += " with changes"
	}
	return commit, info.GoVersion, nil
}

// RedisVersion returns the version of a redis-server.
func RedisVersion(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", program, err)
	}
	if m := regexp.MustCompile(`v=(\S+)`).FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	return strings.TrimSpace(string(out)), nil
}

// PeerVersion describes the version of another server's program: said or, if that is empty, its commit, followed by its compiler.
func PeerVersion(program, said string) string {
	commit, compiler, err := Built(program)
	if err != nil {
		commit, compiler = "unknown", "unknown" // the program may not be written in Go
	}
	if said == "" {
		said = "commit " + commit
	}
	return said + ", " + compiler
}
