package redis

import (
	"cmp"
	"context"
	_ "embed" // for a script
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// What the user has to be allowed, beside its keys: no more than what decisions, give-backs and resets need. AUTH always is.
const (
	grantsOurs = "+eval +evalsha +info +get +mget +set +setrange +incrby +unlink +pexpire +time +lindex +llen +lrange +lset +ltrim +rpush " +
		"+hdel +hmget +hset +zadd +zcard +zrangebyscore +zrem +zremrangebyscore +zscore"
	grantsReference = "+incrby +expire +get"
	grantsCluster   = "+cluster|slots +asking"
)

// judgeEach is how often a connection whose user lacks something is tried again.
const judgeEach = time.Second

// permitted is the script that finds out what other scripts may not do.
//
//go:embed permitted.lua
var permitted string

// words are in the scripts' commands, among others.
var words = regexp.MustCompile(`'([A-Z]{3,})'`)

// commandsOf returns the names of the commands that a script calls, and other words.
func commandsOf(texts []string) []any {
	var all []any
	for _, text := range texts {
		for _, m := range words.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(all, any(m[1])) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// needs knows what a codec needs the user to be allowed.
type needs interface {
	// trial returns commands that change nothing. Their replies tell what the user may not do. domains may be nil.
	trial(domains *[]string, d *dialect) []redis.Cmder
	// lacks returns what the user may not do, given the replies to trial's commands.
	lacks(trial []redis.Cmder) lack
	// probes returns commands that not every proxy takes, and that change nothing.
	probes() [][]any
}

// lack is what a user may not do. The zero value lacks nothing.
type lack struct {
	unknown []string // commands without which decisions fail, and which the server does not have
	refused string   // why the server refuses the script that decides; empty if it does not
	needed  []string // commands without which decisions fail
	keys    bool     // it may not use the keys of counters
	some    bool     // it may not use the keys of some domains
	free    bool     // it may use those that it was tried with
}

// fatal reports whether decisions fail.
func (l *lack) fatal() bool { return len(l.needed) > 0 || l.keys }

// any reports whether anything is lacking.
func (l *lack) any() bool { return l.fatal() || l.some }

// text says what a user may not do.
func (l *lack) text(user string) string {
	var what []string
	if len(l.needed) > 0 {
		what = append(what, "run "+strings.Join(l.needed, ", "))
	}
	switch {
	case l.keys:
		what = append(what, "use the keys of counters")
	case l.some:
		what = append(what, "use the keys of every domain")
	}
	return "the user " + user + " may not " + strings.Join(what, ", nor ")
}

// grant returns the command that lets a user of p do what it has to. Redis refuses a pattern of keys for a user who may
// use all of them, so keys are left out of it if they are no matter.
func (p *pool) grant(user string, withKeys bool) string {
	pattern := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(p.config.KeyPrefix)
	commands := grantsReference
	if p.config.KeyFormat == OurKeys {
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
	if p.target.db != 0 {
		line += " +select"
	}
	if p.config.Type == Cluster {
		line += " " + grantsCluster
	}
	return line
}

// advised returns e, and if the server does not let us in, or the user may not do something, with what to do about it.
func (p *pool) advised(e *remote.Error) *remote.Error {
	more := *e
	switch e.Code {
	case "NOAUTH", "WRONGPASS":
		more.Text += " The password is REDIS_AUTH, or REDIS_PERSECOND_AUTH for limits per second"
		if p.sentinels != nil {
			more.Text += "; one in REDIS_URL is the sentinels', and not this master's"
		}
	case "NOPERM":
		user, _, _ := p.config.credentials(p.target.auth) // it has been read before
		more.Text += "; allow it in Redis: " + p.grant(cmp.Or(user, "default"), false)
	}
	return &more
}

// judge finds out what the user of a connection may not do. exec sends commands over it.
func (p *pool) judge(d *dialect, exec func([]redis.Cmder) error) (lack, error) {
	trial := p.needs.trial(p.domains.Load(), d)
	sent := make([]redis.Cmder, 0, len(trial))
	for _, c := range trial {
		if d.has(c.Name()) {
			sent = append(sent, c)
		} else {
			c.SetErr(unknownError(c.Name()))
		}
	}
	if err := exec(sent); err != nil {
		return lack{}, err
	}
	return p.needs.lacks(trial), nil
}

// served returns an error if the server at the other end of l does not have what decisions need.
func (p *pool) served(l *link) error {
	if p.sentinels != nil && l.server.role == "slave" {
		return store.Failed(ClassReadOnly, l.addr, "the sentinels say that this is the master, but it is a replica")
	}
	return p.unserved(&l.lack)
}

// unserved returns an error if no decision is to be had of a server that lacks this.
func (p *pool) unserved(l *lack) error {
	text := "the server there, or a proxy in front of it, "
	switch {
	case len(l.unknown) > 0:
		text += "does not take " + strings.Join(l.unknown, ", ")
	case l.refused != "":
		text += "refuses scripts (" + l.refused + ")"
	default:
		return nil
	}
	if p.config.KeyFormat == OurKeys {
		text += ", and counters are kept by scripts: " + withoutScripts
	}
	return remote.Reworded(errNotServed, text)
}

// withoutScripts is what to do about a server that has none.
const withoutScripts = "set REDIS_KEY_FORMAT=reference, which counts fixed windows by INCRBY and EXPIRE"

// errNotServed is the error of a server that does not have what decisions need.
var errNotServed = errors.New("a command is missing")

// SetDomains tells the names of the domains that are limited. With [ReferenceKeys] the keys of counters begin with them,
// and the user has to be allowed to use these.
func (b *Backend) SetDomains(names []string) {
	for _, p := range b.pools() {
		p.domains.Store(&names)
		p.doubts.Add(1)
		if p.one != nil {
			p.one.tick()
		}
		if p.cluster != nil {
			for _, n := range *p.cluster.nodes.Load() {
				n.tick()
			}
		}
	}
}

// judge finds out anew what the user of w's connection may not do.
func (w *writer) judge(ctx context.Context) {
	p := w.node.pool
	w.judged, w.doubts, w.doubt = time.Now(), p.doubts.Load(), false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.opTimeout())
	defer cancel()
	found, err := p.judge(&w.link.dialect, func(trial []redis.Cmder) error { return w.exec(ctx, trial, true) })
	if err != nil || p.unserved(&found) != nil {
		w.hangUp()
		return
	}
	w.lacks(found)
}

// suspicious reports whether it is time to judge w's connection.
func (w *writer) suspicious() bool {
	return w.doubts != w.node.pool.doubts.Load() || (w.doubt || w.denied) && time.Since(w.judged) > judgeEach
}

// lacks reports what the user of w's connection may not do, and when that is over.
func (w *writer) lacks(found lack) {
	n, p := w.node, w.node.pool
	before := w.denied
	w.denied = found.fatal()
	switch {
	case w.denied && !before:
		n.denied.Add(1)
	case !w.denied && before && n.denied.Add(-1) == 0:
		p.observer.Event(remote.Event{Kind: EventPermitted, Node: n.addr})
	}
	if !found.any() {
		return
	}
	e := remote.Event{Kind: EventLimited, Node: n.addr, Detail: p.grant(w.link.user, !found.free)}
	if w.denied {
		e.Kind = EventDenied
	}
	e.Err = store.Failed(ClassNoAuth, w.link.addr, found.text(w.link.user))
	p.observer.Event(e)
}

// probes returns commands that not every proxy takes, and that change nothing.
func (s *scriptCodec) probes() [][]any {
	key := s.prefix + "rl:{permitted}"
	return append(greetings(), []any{"eval", "return 0", "0"}, []any{"eval", "return 0", "1", key}, []any{"evalsha", s.script.sha, "1", key})
}

// trial returns commands that change nothing, whose replies tell what the user may not do, and whether the server takes the
// script, which they have it load. The script is asked for no operation.
func (s *scriptCodec) trial(_ *[]string, d *dialect) []redis.Cmder {
	key := s.prefix + "rl:{permitted}"
	keys := []any{"0"} // else nothing is run for a user who may not use the key
	if !d.has(evalNoKeys) {
		keys = []any{"1", key}
	}
	nothing := append(slices.Clip(keys), string(make([]byte, 16)))
	return []redis.Cmder{
		newCommand(slices.Concat([]any{"eval", permitted}, keys, []any{key}, s.commands)...), newCommand("get", key),
		newCommand(append([]any{"eval", s.script.text}, nothing...)...), newCommand(append([]any{"evalsha", s.script.sha}, nothing...)...),
	}
}

// lacks returns what the user may not do, given the replies to trial's commands.
func (s *scriptCodec) lacks(trial []redis.Cmder) (l lack) {
	may, get, script, called := trial[0], trial[1], trial[2], trial[3]
	scripts := []redis.Cmder{may, script, called}
	l.unknown, l.needed = notHad(scripts), notPermitted(scripts)
	l.keys = keyForbidden(get)
	denied, ran := may.(*command).Val().([]any)
	for _, name := range denied {
		if name, _ := name.(string); name == "~" {
			l.keys = true
		} else {
			l.needed = append(l.needed, strings.ToLower(name))
		}
	}
	if !odd(get) && odd(script) { // a proxy whose server is away answers neither
		l.refused = refusal(script.Err())
	}
	l.free = !l.keys && (ran || !forbids(get))
	return l
}

// refusal returns why a script was refused, without the hash of the script that Redis adds.
func refusal(err error) string {
	text, _, _ := strings.Cut(remote.Text(err), " script: ")
	return strings.TrimSuffix(text, ".")
}

// odd reports whether c got an error that says nothing of the state of the server, or of the user.
func odd(c redis.Cmder) bool {
	if c.Err() == nil || errors.Is(c.Err(), redis.Nil) || forbids(c) {
		return false
	}
	e := classify("", c.Err())
	return e.Class == remote.Other && e.Code != "MOVED" && e.Code != "ASK"
}

// probes returns commands that not every proxy takes, and that change nothing.
func (r *referenceCodec) probes() [][]any {
	key := r.prefix + "rl:{permitted}"
	return append(greetings(), []any{"expire", key, "x"}, []any{"get", key})
}

// trial returns commands that change nothing, whose replies tell what the user may not do. At most 100 domains count.
func (r *referenceCodec) trial(domains *[]string, _ *dialect) []redis.Cmder {
	key := r.prefix + "rl:{permitted}"
	all := []redis.Cmder{newCommand("incrby", key, "x"), newCommand("expire", key, "x"), newCommand("get", key)}
	if domains != nil {
		for _, name := range (*domains)[:min(len(*domains), 100)] {
			all = append(all, newCommand("incrby", r.prefix+name+"_", "x"))
		}
	}
	return all
}

// lacks returns what the user may not do, given the replies to trial's commands. That it may not use the key of none of
// the domains means nothing.
func (r *referenceCodec) lacks(trial []redis.Cmder) lack {
	needed, keys := trial[:3], trial[3:]
	l := lack{unknown: notHad(needed), needed: notPermitted(needed)}
	denied := 0
	for _, c := range keys {
		if keyForbidden(c) {
			denied++
		}
	}
	l.keys = denied > 0 && denied == len(keys)
	l.some = denied > 0
	l.free = denied == 0 && slices.ContainsFunc(needed, func(c redis.Cmder) bool { return !forbids(c) })
	return l
}

// forbidden matches replies to what the user may not do.
var forbidden = regexp.MustCompile(`^NOPERM |The user executing the script|ACL failure in script`)

// forbids reports whether c was refused because the user may not do it.
func forbids(c redis.Cmder) bool { return c.Err() != nil && forbidden.MatchString(c.Err().Error()) }

// keyForbidden reports whether c was refused because the user may not use its key.
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

// notPermitted returns the names of those commands that were refused because the user may not run them.
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
