package probe

import (
	"cmp"
	"context"
	_ "embed" // for a script
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Server is what is known of the process at the other end of a connection; nothing if it may not be asked.
type Server struct {
	Run     string // its run_id
	Name    string // Redis, or what takes its place
	Version string
	Mode    string // standalone or cluster
	Role    string // master or slave
	Policy  string // maxmemory-policy
}

// Greet authenticates, and asks the server for its version and role. What cannot be asked stays unknown, and what it lacks is noted. Unused is the name of
// a key that is never a counter's.
func Greet(ctx context.Context, conn *redis.Conn, can *Capabilities, unused string) (s Server, err error) {
	pipe := conn.Pipeline()
	asked := map[string]*redis.Cmd{}
	for _, args := range greetings() {
		if name := commandOf(args); can.Has(name) {
			asked[name] = pipe.Do(ctx, args...)
		}
	}
	if !can.Has("echo") && !can.Has("ping") {
		asked["get"] = pipe.Do(ctx, "get", unused)
	}
	_, err = pipe.Exec(ctx)
	if err = can.greeted(err, asked); err != nil {
		return s, err
	}
	if info := asked["info"]; info != nil {
		text, _ := info.Val().(string)
		s = parseInfo(text)
	}
	return s, nil
}

// greetings returns the commands that a connection begins with, and without which it works too.
func greetings() [][]any {
	return [][]any{{"info"}, {"echo", ""}, {"ping"}}
}

// greeted returns why the server did not answer, or notes what it does not know.
func (c *Capabilities) greeted(err error, asked map[string]*redis.Cmd) error {
	if err == nil {
		return nil
	}
	if _, reply := errors.AsType[redis.Error](err); !reply {
		return err
	}
	answered := false
	for name, cmd := range asked {
		answered = answered || cmd.Err() != nil || cmd.Val() != nil
		if cmd.Err() == nil || errors.Is(cmd.Err(), redis.Nil) {
			continue
		}
		switch Classify("", cmd.Err()).Code {
		case "NOAUTH", "LOADING", "BUSY", "MASTERDOWN":
			return cmd.Err()
		case "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN":
			continue // it has the command; the key is another node's, or no node's
		}
		if !keyForbidden(cmd) { // it is a command that is not to be had
			c.without(name)
		}
	}
	if !answered { // it is the reply to AUTH or SELECT, after which nothing was sent
		return err
	}
	return nil
}

// parseInfo reads the server's identity from a reply to INFO.
func parseInfo(text string) Server {
	s := Server{
		Run: InfoField(text, "run_id"), Name: "Redis", Version: InfoField(text, "redis_version"), Mode: cmp.Or(InfoField(text, "redis_mode"), InfoField(text, "server_mode")),
		Role: InfoField(text, "role"), Policy: InfoField(text, "maxmemory_policy"),
	}
	for _, other := range []string{"Valkey", "Dragonfly"} {
		if v := InfoField(text, strings.ToLower(other)+"_version"); v != "" {
			s.Name, s.Version = other, strings.TrimPrefix(v, "df-v")
		}
	}
	if strings.Contains(InfoField(text, "executable"), "keydb") {
		s.Name = "KeyDB"
	}
	return s
}

// InfoField returns a field of a reply to INFO, or "".
func InfoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Old returns an error if the server is known to be too old for scripts.
func (s *Server) Old() error {
	least, known := map[string][2]int{"Redis": {6, 2}, "Valkey": {7, 2}}[s.Name]
	var major, minor int
	if _, err := fmt.Sscanf(s.Version, "%d.%d", &major, &minor); err != nil || !known {
		return nil //nolint:nilerr // a server that does not give its version is accepted
	}
	if major < least[0] || major == least[0] && minor < least[1] {
		return fmt.Errorf("this is %s %s, which is too old: Redis 6.2 or later, or Valkey 7.2 or later, is required; "+
			"REDIS_KEY_FORMAT=reference, which counts fixed windows without scripts, takes Redis 4 or later", s.Name, s.Version)
	}
	return nil
}

// whoami is the script that finds out which process runs scripts.
//
//go:embed whoami.lua
var whoami string

// Tries is how many keys are tried: of several servers behind a proxy all but one would have to be without luck.
const Tries = 16

// Alone reports whether there is one server at the other end of a connection: one that runs the scripts for all keys, says that it stands
// alone, and is the one that has said what it is. Prefix is that of keys.
func Alone(ctx context.Context, conn Conn, prefix, run string) (bool, error) {
	if run == "" {
		return false, nil
	}
	cmds := make([]redis.Cmder, Tries)
	for i := range cmds {
		cmds[i] = NewCommand("eval", whoami, "1", prefix+"rl:{"+strconv.Itoa(i)+"}") //nolint:contextcheck // go-redis keeps the context, and does not look at it
	}
	if err := conn.Exec(ctx, cmds); err != nil {
		return false, err
	}
	for _, c := range cmds {
		if c.(*Command).Val() != run {
			return false, nil
		}
	}
	return true, nil
}
