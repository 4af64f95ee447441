package main

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// versions are those of the programs.
type versions struct {
	Commit string `json:"commit"` // of ratelimitd
	Go     string `json:"go"`
	Redis  string `json:"redis,omitempty"`
	Peer   string `json:"peer,omitempty"`

	PeerEnv string `json:"peer_env,omitempty"` // its settings, separated by spaces
}

// programs returns the versions of what c runs.
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
	return v, nil
}
