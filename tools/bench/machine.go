package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// versions are the versions of the programs.
type versions struct {
	Commit string `json:"commit"` // of ratelimitd
	Go     string `json:"go"`
	Redis  string `json:"redis,omitempty"`
	Peer   string `json:"peer,omitempty"`

	Envoy     string `json:"envoy,omitempty"`
	Limitador string `json:"limitador,omitempty"`

	PeerEnv string `json:"peer_env,omitempty"` // its settings, separated by spaces
}

// programs returns the versions of c's programs.
func (c config) programs(ctx context.Context) (v versions, err error) {
	if v.Commit, v.Go, err = proc.Built(c.server); err != nil {
		return v, err
	}
	if c.redis != "" {
		if v.Redis, err = proc.RedisVersion(ctx, c.redis); err != nil {
			return v, err
		}
	}
	if c.peer != "" {
		v.Peer, v.PeerEnv = proc.PeerVersion(c.peer, c.peerVersion), c.peerEnv
	}
	if v.Envoy, err = asked(ctx, c.envoy, `/([0-9.]+)/`); err != nil {
		return v, err
	}
	v.Limitador, err = asked(ctx, c.limitador, `v([0-9]\S*( \([^)]*\))?)`)
	return v, err
}

// asked returns the version that a program reports, from the group of an expression; "" without a program.
func asked(ctx context.Context, program, expression string) (string, error) {
	if program == "" {
		return "", nil
	}
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", program, err)
	}
	m := regexp.MustCompile(expression).FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version says %q: want %s", program, out, expression)
	}
	return string(m[1]), nil
}
