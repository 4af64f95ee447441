package redis

import (
	"context"
	_ "embed" // for a script
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/internal/probe"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// examined is the script that tries what scripts can do.
//
//go:embed examine.lua
var examined string

// examination is an examination of Redis, and the server that is being looked at.
type examination struct {
	*pool

	addr     string
	link     *link
	findings []remote.Finding
	failed   bool
	narrow   bool // the user may use the keys of some domains only
}

func (x *examination) say(check string, result remote.Result, format string, args ...any) {
	x.findings = append(x.findings, remote.Finding{Node: x.addr, Check: check, Result: result, Text: fmt.Sprintf(format, args...)})
	x.failed = x.failed || result == remote.Failure
}

// Examine looks at all that counters need of Redis. It writes keys that are never a counter's, and end by themselves. It must be
// called instead of Run, and b closed after it.
func (b *Backend) Examine(ctx context.Context) []remote.Finding {
	x := new(examination)
	for _, x.pool = range b.pools() {
		for _, x.addr = range x.places(ctx) {
			x.server(ctx)
		}
	}
	x.addr = ""
	switch {
	case x.failed:
	case x.narrow:
		x.say("round trip", remote.Doubt, "not tried, because the user may use the keys of some domains only: see whether these are all domains of the rules")
	default:
		return append(x.findings, remote.Try(ctx, b, b.Run))
	}
	return x.findings
}

// places returns the addresses of the servers that counters would be kept on, and says how they were found.
func (x *examination) places(ctx context.Context) []string {
	switch {
	case x.sentinels != nil:
		said := x.sentinels.opinions(ctx)
		masters, _ := likeliest(said)
		masters = masters[:min(len(masters), 1)]
		for _, o := range said {
			switch x.addr = o.sentinel; {
			case o.err != nil && len(masters) == 0:
				x.say("sentinel", remote.Failure, "%s", o.err.Text)
			case o.err != nil:
				x.say("sentinel", remote.Doubt, "%s", o.err.Text)
			case o.master != masters[0]:
				x.say("sentinel", remote.Doubt, "names %s, where others name %s: it is cut off, or watches another master under this name", o.master, masters[0])
			default:
				x.say("sentinel", remote.Right, "names %s", o.master)
			}
		}
		return masters
	case x.cluster != nil:
		if err := x.cluster.refresh(ctx); err != nil {
			x.addr = x.target.addrs[0]
			x.say("cluster", remote.Failure, "%s", x.advised(classify("", err)).Text)
		}
		return slices.Sorted(maps.Keys(*x.cluster.nodes.Load()))
	}
	return x.target.addrs
}

// server examines one server.
func (x *examination) server(ctx context.Context) {
	l, err := x.meet(ctx, x.addr)
	if err != nil {
		x.say("connection", remote.Failure, "%s", x.advised(classify(x.addr, err)).Text)
		return
	}
	defer l.close()
	x.link = l
	x.say("connection", remote.Right, "as the user %s", l.user)
	x.identity()
	switch lack := &l.lacks; {
	case lack.Fatal():
		x.say("permissions", remote.Failure, "%s; allow it in Redis: %s", lack.Text(l.user), x.grant().Command(l.user, !lack.Free))
		return
	case len(lack.Unknown) > 0:
		x.say("permissions", remote.Failure, "%s", remote.Text(lack.Unserved(x.config.KeyFormat == OurKeys)))
		return
	}
	x.say("permissions", remote.Right, "the user may do all that is needed")
	if x.config.KeyFormat == OurKeys {
		x.scripts(ctx)
	} else if x.narrow = x.narrow || !l.lacks.Free; !l.lacks.Free {
		return
	}
	if err := x.expiry(ctx); err != nil {
		x.say("expiry", remote.Failure, "%s", classify(x.addr, err).Text)
	} else {
		x.say("expiry", remote.Right, "keys end when they should")
	}
}

// identity says what the server is, and how it is set up.
func (x *examination) identity() {
	s, lacks, unknown := &x.link.server, x.link.can.String(), "not known, as INFO is not to be had"
	switch what := strings.TrimSpace(s.Name + " " + s.Version + " " + s.Mode); {
	case s.Role == "slave":
		x.say("version", remote.Failure, "%s, a replica, which takes no writes: REDIS_URL must lead to its master", what)
	case s.Mode == "cluster" && x.cluster == nil:
		x.say("version", remote.Doubt, "%s: if there are more nodes, REDIS_TYPE must be cluster", what)
	case s.Version != "":
		x.say("version", remote.Right, "%s", what)
	case x.link.can.Closes():
		x.say("version", remote.Right, "not known: this is a proxy, such as Twemproxy, which closes the connection on what it does not know")
	default:
		x.say("version", remote.Right, "%s: Redis must be 6.2 or later, or 4 with REDIS_KEY_FORMAT=reference", unknown)
	}
	if lacks != "" {
		x.say("commands", remote.Right, "done without: %s", lacks)
	}
	switch s.Policy {
	case "noeviction", "volatile-ttl":
		x.say("eviction", remote.Right, "maxmemory-policy is %s", s.Policy)
	case "":
		x.say("eviction", remote.Doubt, "%s: see that maxmemory-policy is noeviction or volatile-ttl", unknown)
	default:
		x.say("eviction", remote.Doubt, "maxmemory-policy is %s, which may drop counters and so lift limits early: set it to noeviction or volatile-ttl", s.Policy)
	}
}

// do sends one command, and returns the reply if it is a text. An error is the command's own, or the connection's.
func (x *examination) do(ctx context.Context, args ...any) (string, error) {
	c := newCommand(args...) //nolint:contextcheck // go-redis keeps the context, and does not look at it
	err := x.link.Exec(ctx, []redis.Cmder{c})
	if err == nil && !errors.Is(c.Err(), redis.Nil) {
		err = c.Err()
	}
	text, _ := c.Val().(string)
	return text, err
}

// scripts says what the server lets scripts do.
func (x *examination) scripts(ctx context.Context) {
	keys := []any{"0"} // a key may be another node's
	if !x.link.can.Has(probe.EvalNoKeys) {
		keys = []any{"2", x.needs.Unused(), x.needs.Unused() + "2"}
	}
	for _, part := range []string{"scripts", "TIME in scripts", "struct in scripts"} {
		if _, err := x.do(ctx, slices.Concat([]any{"eval", examined}, keys, []any{part})...); err != nil {
			x.say(part, remote.Failure, "%s", probe.ErrorText(err))
		} else {
			x.say(part, remote.Right, "tried and fine")
		}
	}
	switch reason := x.link.lacks.NoScript; {
	case reason != "":
		x.say("counting script", remote.Failure, "not run: %s: %s", reason, probe.WithoutScripts)
		return
	case x.cluster == nil: // a cluster knows no other way
		x.tags(ctx)
	}
	x.say("counting script", remote.Right, "tried and fine")
}

// testKey returns the name of a key that is never a counter's.
func (x *examination) testKey(i int) string {
	return fmt.Sprintf("%srl:{check-store %d %d}", x.config.KeyPrefix, time.Now().UnixNano(), i)
}

// tags says whether the keys of one counter are on one server.
func (x *examination) tags(ctx context.Context) {
	for i := range probe.Tries {
		key := x.testKey(i)
		found, err := x.do(ctx, "set", key+"2", "x", "px", "5000")
		if err == nil {
			found, err = x.do(ctx, "eval", examined, "2", key, key+"2", "tags")
		}
		switch {
		case err != nil:
			x.say("hash tags", remote.Failure, "%s", remote.Text(err))
			return
		case found != "x":
			x.say("hash tags", remote.Failure, "keys with the same part in braces are on different servers, which must not be: "+
				"have the proxy use only that part (Twemproxy: hash_tag: \"{}\"), or %s", probe.WithoutScripts)
			return
		}
	}
	x.say("hash tags", remote.Right, "keys with the same part in braces are on one server")
}

// expiry returns an error unless keys end when they should.
func (x *examination) expiry(ctx context.Context) (err error) {
	var key string
	for i := range 200 { // in a cluster, until it is one of this node
		key = x.testKey(i)
		if x.config.KeyFormat == OurKeys {
			_, err = x.do(ctx, "set", key, "1", "px", "100")
		} else if _, err = x.do(ctx, "incrby", key, "1"); err == nil {
			_, err = x.do(ctx, "expire", key, "1")
		}
		if err == nil || classify("", err).Code != "MOVED" {
			break
		}
	}
	for begun := time.Now(); err == nil && time.Since(begun) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
		var found string
		if found, err = x.do(ctx, "get", key); err == nil && found == "" {
			return nil
		}
	}
	if err == nil {
		err = errors.New("a key is still there long after its end: memory would fill up")
	}
	return err
}
