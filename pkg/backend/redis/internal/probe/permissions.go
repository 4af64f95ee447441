package probe

import (
	"context"
	_ "embed" // for a script
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// What the user has to be allowed, beside its keys: no more than what decisions, refunds and resets need. AUTH always is.
const (
	grantsOurs = "+eval +evalsha +info +get +mget +set +setrange +incrby +unlink +pexpire +time +lindex +llen +lrange +lset +ltrim +rpush " +
		"+hdel +hmget +hset +hstrlen +strlen +zadd +zcard +zrangebyscore +zrem +zremrangebyscore +zscore"
	grantsReference = "+incrby +expire +get"
	grantsCluster   = "+cluster|slots +asking"
)

// permitted is the script that finds out what other scripts may not do.
//
//go:embed permitted.lua
var permitted string

// words are in the scripts' commands, among others.
var words = regexp.MustCompile(`'([A-Z]{3,})'`)

// commandsOf returns the names of the commands that a script calls, and other words.
func commandsOf(text string) []any {
	var all []any
	for _, m := range words.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(all, any(m[1])) {
			all = append(all, m[1])
		}
	}
	return all
}

// Requirements are what a way of counting needs of a server: [Scripts] or [Counters].
type Requirements interface {
	// Commands returns commands that not every proxy takes, and that change nothing.
	Commands() [][]any
	// Unused returns the name of a key that is never a counter's, but lies where counters do.
	Unused() string
	// probe returns commands that change nothing. Their replies tell what is missing. domains may be nil.
	probe(domains *[]string, c *Capabilities) []redis.Cmder
	// missing returns what is missing, given the replies to probe's commands.
	missing(probe []redis.Cmder) Missing
}

// Missing is what a server or its user lacks of [Requirements]. The zero value lacks nothing.
type Missing struct {
	Unknown  []string // commands without which decisions fail, and which the server does not have
	NoScript string   // why the server does not run the script that decides; empty if it does not
	Denied   []string // commands without which decisions fail, and which the user may not run
	Keys     bool     // the user may not use the keys of counters
	Some     bool     // the user may not use the keys of some domains
	Free     bool     // the user may use those that were tried
}

// Fatal reports whether decisions fail for want of permissions.
func (m *Missing) Fatal() bool { return len(m.Denied) > 0 || m.Keys }

// Any reports whether any permission is lacking.
func (m *Missing) Any() bool { return m.Fatal() || m.Some }

// Text says what a user may not do.
func (m *Missing) Text(user string) string {
	var what []string
	if len(m.Denied) > 0 {
		what = append(what, "run "+strings.Join(m.Denied, ", "))
	}
	switch {
	case m.Keys:
		what = append(what, "use the keys of counters")
	case m.Some:
		what = append(what, "use the keys of every domain")
	}
	return "the user " + user + " may not " + strings.Join(what, ", nor ")
}

// Grant is what a user has to be allowed.
type Grant struct {
	Prefix  string // of keys
	Scripts bool   // counters are kept by scripts
	Select  bool   // the database is not the first one
	Cluster bool
}

// Command returns the command that lets a user do what it has to. Redis denies a pattern of keys to a user that may
// use all of them, so keys are left out of it if they are no matter.
func (g Grant) Command(user string, withKeys bool) string {
	pattern := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(g.Prefix)
	commands := grantsReference
	if g.Scripts {
		pattern, commands = pattern+"rl:", grantsOurs
	}
	keys := "~" + pattern + "* "
	switch {
	case !withKeys:
		keys = ""
	case strings.ContainsAny(pattern, " \t\"'\\"):
		keys = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(strings.TrimSuffix(keys, " ")) + `" `
	}
	line := "ACL SETUSER " + user + " " + keys + commands
	if g.Select {
		line += " +select"
	}
	if g.Cluster {
		line += " " + grantsCluster
	}
	return line
}

// A Conn sends commands over a connection, and returns an error if the replies cannot be trusted.
type Conn interface {
	Exec(ctx context.Context, commands []redis.Cmder) error
}

// Permissions finds out what the user of a connection lacks of what is needed. Domains may be nil.
func Permissions(ctx context.Context, conn Conn, needs Requirements, c *Capabilities, domains *[]string) (Missing, error) {
	probe := needs.probe(domains, c)
	sent := make([]redis.Cmder, 0, len(probe))
	for _, cmd := range probe {
		if c.Has(cmd.Name()) {
			sent = append(sent, cmd)
		} else {
			cmd.SetErr(unknownError(cmd.Name()))
		}
	}
	if err := conn.Exec(ctx, sent); err != nil {
		return Missing{}, err
	}
	return needs.missing(probe), nil
}

// Unserved returns an error if the server does not have what decisions need; scripts is [Grant.Scripts].
func (m *Missing) Unserved(scripts bool) error {
	text := "the server there, or a proxy in front of it, "
	switch {
	case len(m.Unknown) > 0:
		text += "does not take " + strings.Join(m.Unknown, ", ")
	case m.NoScript != "":
		text += "does not run scripts (" + m.NoScript + ")"
	default:
		return nil
	}
	if scripts {
		text += ", and counters are kept by scripts: " + WithoutScripts
	}
	return remote.Reworded(errNotServed, text)
}

// WithoutScripts is what to do about a server that has none.
const WithoutScripts = "set REDIS_KEY_FORMAT=reference, which counts fixed windows by INCRBY and EXPIRE"

// errNotServed is the error of a server that does not have what decisions need.
var errNotServed = errors.New("a command is missing")

// Scripts are the requirements of counters that a script keeps.
type Scripts struct {
	Prefix

	Text string // of the script
	SHA  string // its hash
}

// Counters are the requirements of counters that INCRBY and EXPIRE keep.
type Counters struct{ Prefix }

// Prefix begins all keys.
type Prefix string

// Unused implements [Requirements].
func (p Prefix) Unused() string { return string(p) + "rl:{permitted}" }

// Commands implements [Requirements].
func (s Scripts) Commands() [][]any {
	key := s.Unused()
	return append(greetings(), []any{"eval", "return 0", "0"}, []any{"eval", "return 0", "1", key}, []any{"evalsha", s.SHA, "1", key})
}

// probe also has the server load the script, which is asked for no operation.
func (s Scripts) probe(_ *[]string, c *Capabilities) []redis.Cmder {
	key := s.Unused()
	keys := []any{"0"} // else nothing is run for a user who may not use the key
	if !c.Has(EvalNoKeys) {
		keys = []any{"1", key}
	}
	nothing := append(slices.Clip(keys), string(make([]byte, 16)))
	return []redis.Cmder{
		NewCommand(slices.Concat([]any{"eval", permitted}, keys, []any{key}, commandsOf(s.Text))...), NewCommand("get", key),
		NewCommand(append([]any{"eval", s.Text}, nothing...)...), NewCommand(append([]any{"evalsha", s.SHA}, nothing...)...),
	}
}

func (s Scripts) missing(probe []redis.Cmder) (m Missing) {
	may, get, script, called := probe[0], probe[1], probe[2], probe[3]
	scripts := []redis.Cmder{may, script, called}
	m.Unknown, m.Denied = notHad(scripts), notPermitted(scripts)
	m.Keys = keyForbidden(get)
	denied, ran := may.(*Command).Val().([]any)
	for _, name := range denied {
		if name, _ := name.(string); name == "~" {
			m.Keys = true
		} else {
			m.Denied = append(m.Denied, strings.ToLower(name))
		}
	}
	if !odd(get) && odd(script) { // a proxy whose server is down answers neither
		m.NoScript = ErrorText(script.Err())
	}
	m.Free = !m.Keys && (ran || !forbids(get))
	return m
}

// ErrorText returns why a script was not run, without the hash of the script that Redis adds.
func ErrorText(err error) string {
	text, _, _ := strings.Cut(remote.Text(err), " script: ")
	return strings.TrimSuffix(text, ".")
}

// odd reports whether c got an error that says nothing of the state of the server, or of the user.
func odd(c redis.Cmder) bool {
	if c.Err() == nil || errors.Is(c.Err(), redis.Nil) || forbids(c) {
		return false
	}
	e := Classify("", c.Err())
	return e.Class == remote.Other && e.Code != "MOVED" && e.Code != "ASK"
}

// Commands implements [Requirements].
func (r Counters) Commands() [][]any {
	key := r.Unused()
	return append(greetings(), []any{"expire", key, "x"}, []any{"get", key})
}

// probe tries the keys of at most 100 domains.
func (r Counters) probe(domains *[]string, _ *Capabilities) []redis.Cmder {
	key := r.Unused()
	all := []redis.Cmder{NewCommand("incrby", key, "x"), NewCommand("expire", key, "x"), NewCommand("get", key)}
	if domains != nil {
		for _, name := range (*domains)[:min(len(*domains), 100)] {
			all = append(all, NewCommand("incrby", string(r.Prefix)+name+"_", "x"))
		}
	}
	return all
}

// missing takes no notice of keys if the user may use that of none of the domains.
func (r Counters) missing(probe []redis.Cmder) Missing {
	needed, keys := probe[:3], probe[3:]
	m := Missing{Unknown: notHad(needed), Denied: notPermitted(needed)}
	denied := 0
	for _, c := range keys {
		if keyForbidden(c) {
			denied++
		}
	}
	m.Keys = denied > 0 && denied == len(keys)
	m.Some = denied > 0
	m.Free = denied == 0 && slices.ContainsFunc(needed, func(c redis.Cmder) bool { return !forbids(c) })
	return m
}

// forbidden matches replies to what the user may not do.
var forbidden = regexp.MustCompile(`^NOPERM |The user executing the script|ACL failure in script`)

// forbids reports whether c failed because the user may not do it.
func forbids(c redis.Cmder) bool { return c.Err() != nil && forbidden.MatchString(c.Err().Error()) }

// keyForbidden reports whether c failed because the user may not use its key.
func keyForbidden(c redis.Cmder) bool { return forbids(c) && deniedCommand(c.Err().Error()) == "" }

// commandName matches the name of a command in such a reply, which no client has influence on.
var commandName = regexp.MustCompile(`to run the '([a-z|]{1,40})' command`)

// deniedCommand returns the command that the user may not run, according to a reply, or "".
func deniedCommand(reply string) string {
	if m := commandName.FindStringSubmatch(reply); m != nil {
		return m[1]
	}
	return ""
}

// notPermitted returns the names of those commands that failed because the user may not run them.
func notPermitted(commands []redis.Cmder) (all []string) {
	for _, c := range commands {
		if forbids(c) && !keyForbidden(c) {
			all = append(all, deniedCommand(c.Err().Error()))
		}
	}
	return slices.Compact(all)
}

// notHad returns the names of those commands that the server does not have.
func notHad(commands []redis.Cmder) (all []string) {
	for _, c := range commands {
		if notKnown(c) {
			all = append(all, c.Name())
		}
	}
	return slices.Compact(all)
}
