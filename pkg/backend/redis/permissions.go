package redis

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Permissions that the user needs in addition to AUTH, as in docs/redis.md.
const (
	grants = "~rl:* +eval +evalsha +info +get +mget +set +setrange +incrby +unlink +pexpire +time +lindex +llen +lrange +lset +ltrim +rpush " +
		"+hdel +hmget +hset +hstrlen +strlen +zadd +zcard +zrangebyscore +zrem +zremrangebyscore +zscore"
	referenceGrants = "~* +incrby +expire +get"
)

// tryEach is the minimum interval of tests after replies that suggest that the server does not run scripts.
const tryEach = time.Second

// advised returns a copy of e; for a failed login or a missing permission, the text also has advice.
func (p *pool) advised(e *remote.Error) *remote.Error {
	more := *e
	switch e.Code {
	case "NOAUTH", "WRONGPASS":
		more.Text += " The password is REDIS_AUTH, or REDIS_PERSECOND_AUTH for limits per second"
		if p.sentinels != nil {
			more.Text += "; one in REDIS_URL is the sentinels', and not this master's"
		}
	case "NOPERM":
		user, _, _ := credentials(p.config.AuthFile, p.config.Auth, p.target.auth) // was read before
		needed := grants
		if p.config.KeyFormat == ReferenceKeys {
			needed = referenceGrants
		}
		if e.Text != deniedKeys { // Redis accepts no pattern for a user that may use all keys
			_, needed, _ = strings.Cut(needed, " ")
		}
		more.Text += "; allow it in Redis: ACL SETUSER " + cmp.Or(user, "default") + " " + needed
	}
	return &more
}

// try returns an error if the server behind l does not run scripts for its user. It takes from an otherwise unused counter with every
// algorithm, and resets it in the same call, so it changes nothing.
func (p *pool) try(ctx context.Context, l *link) error {
	codec, ok := p.codec.(*scriptCodec)
	if !ok {
		return nil
	}
	limit := engine.Limit{Hits: 2, Window: 1e6, Burst: 2, Initial: 2, Precision: 10, Listed: true}
	op := backend.Op{Take: engine.Take{Cost: 1, Count: 1}}
	for limit.Algorithm = range engine.Algorithms() {
		op.Limits = append(op.Limits, limit)
	}
	take, reset := &item{op: op}, &item{op: op}
	reset.op.Mode, reset.after = backend.Reset, take
	var cs calls
	for range 2 {
		codec.encode(&cs, []*item{take, reset}, true) //nolint:contextcheck // go-redis stores the context, but does not use it
	}
	text, sha := cs.all[0], cs.all[1]
	text.err = &remote.Error{Code: "NOSCRIPT"}
	codec.again(text)                                                 //nolint:contextcheck // the same
	get := newCommand("get", string(text.keys[0].b))                  //nolint:contextcheck // the same
	err := l.exec(ctx, []redis.Cmder{get, text.sent[0], sha.sent[0]}) // GET shows whether the server behind a proxy is available
	for _, c := range cs.all {
		c.replied(l.addr)
		codec.decode(c, l.addr)
		for _, it := range c.items {
			switch e := it.err; {
			case err != nil:
				return err
			case e == nil, trips(e), e.Code == "MOVED", e.Code == "NOSCRIPT":
			case e.Class == ClassNoAuth:
				return e
			case get.Err() == nil, errors.Is(get.Err(), redis.Nil):
				why, _, _ := strings.Cut(strings.TrimSuffix(e.Text, "."), " script: ") // the hash follows
				e.Text = "the server there, or a proxy in front of it, does not run scripts (" + why + "), and counters are kept by scripts: " +
					"set REDIS_KEY_FORMAT=reference, which counts fixed windows by INCRBY and EXPIRE"
				return e
			}
		}
	}
	return nil
}

// try tests again whether the server runs scripts for the user of w's connection.
func (w *writer) try(ctx context.Context) {
	w.tried, w.unsure = time.Now(), false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.node.pool.opTimeout())
	defer cancel()
	if w.node.pool.try(ctx, w.link) != nil {
		w.node.renewed.Add(1) // connecting again reports the reason
		w.hangUp()
	}
}
