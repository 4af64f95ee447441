package redis

import (
	"context"
	_ "embed" // embeds a script
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// server describes the process behind a connection. Fields are empty without the permission to query them.
type server struct {
	run     string // its run_id
	name    string // Redis or Valkey
	version string
	role    string // master or slave
	policy  string // maxmemory-policy
}

// parseInfo parses the server's identity in a reply to INFO.
func parseInfo(text string) server {
	s := server{
		run: infoField(text, "run_id"), name: "Redis", version: infoField(text, "redis_version"), role: infoField(text, "role"),
		policy: infoField(text, "maxmemory_policy"),
	}
	if v := infoField(text, "valkey_version"); v != "" {
		s.name, s.version = "Valkey", v
	}
	return s
}

// infoField returns a field of a reply to INFO, or "".
func infoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// old returns an error if the server is known to be too old for scripts.
func (s *server) old() error {
	least, known := map[string][2]int{"Redis": {6, 2}, "Valkey": {7, 2}}[s.name]
	var major, minor int
	if _, err := fmt.Sscanf(s.version, "%d.%d", &major, &minor); err != nil || !known {
		return nil //nolint:nilerr // a server that does not give its version is accepted
	}
	if major < least[0] || major == least[0] && minor < least[1] {
		return fmt.Errorf("this is %s %s, which is too old: Redis 6.2 or later, or Valkey 7.2 or later, is required; "+
			"REDIS_KEY_FORMAT=reference, which counts fixed windows without scripts, takes Redis 4 or later", s.name, s.version)
	}
	return nil
}

// whoami is a script that returns the run ID of the process that executes it.
//
//go:embed whoami.lua
var whoami string

// tries is the number of tested keys. With several servers behind a proxy, it is very unlikely that one of them gets all keys.
const tries = 16

// alone reports whether there is a single server behind a connection: the process that answered INFO runs the scripts for all keys and is
// not part of a cluster. prefix is the prefix of keys.
func alone(ctx context.Context, l *link, prefix string) (bool, error) {
	if l.server.run == "" {
		return false, nil
	}
	cmds := make([]redis.Cmder, tries)
	for i := range cmds {
		cmds[i] = newCommand("eval", whoami, "1", prefix+"rl:{"+strconv.Itoa(i)+"}") //nolint:contextcheck // go-redis stores the context, but does not use it
	}
	if err := l.exec(ctx, cmds); err != nil {
		return false, err
	}
	for _, c := range cmds {
		if c.(*command).Val() != l.server.run {
			return false, nil
		}
	}
	return true, nil
}
