package main

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

// machine is what a run was made on.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores of %s with %s", m.Cores, m.CPU, m.Kernel)
}

// versions are those of the programs.
type versions struct {
	Commit string `json:"commit"` // of ratelimitd
	Go     string `json:"go"`
	Redis  string `json:"redis,omitempty"`
	Peer   string `json:"peer,omitempty"`
}

// thisMachine describes this machine.
func thisMachine() machine {
	m := machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU()}
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

// programs returns the versions of what c runs.
func (c config) programs(ctx context.Context) (v versions, err error) {
	if v.Commit, v.Go, err = built(c.server); err != nil {
		return v, err
	}
	if c.redis != "" {
		out, err := exec.CommandContext(ctx, c.redis, "--version").Output()
		if err != nil {
			return v, fmt.Errorf("asking %s for its version: %w", c.redis, err)
		}
		v.Redis = strings.TrimSpace(string(out))
		if m := regexp.MustCompile(`v=(\S+)`).FindSubmatch(out); m != nil {
			v.Redis = string(m[1])
		}
	}
	if c.peer != "" {
		commit, compiler, err := built(c.peer)
		if err != nil {
			commit, compiler = "unknown", "unknown" // it need not be of Go
		}
		v.Peer = "commit " + commit
		if c.peerVersion != "" {
			v.Peer = c.peerVersion
		}
		v.Peer += ", " + compiler
	}
	return v, nil
}

// built returns of which commit a program was built, and by which Go.
func built(program string) (commit, compiler string, err error) {
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
