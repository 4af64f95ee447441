package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// plainClient returns a go-redis client without a backend, with the options that a backend would use.
func plainClient(t *testing.T, o *redis.Options) *redis.Client {
	t.Helper()
	o.Protocol, o.DisableIdentity, o.MaxRetries, o.DialerRetries = 2, true, -1, 1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestPlainHello: Twemproxy closes the connection on HELLO, which go-redis always sends. See [withoutHello].
func TestPlainHello(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	proxy := redistest.Twemproxy(t, []string{redistest.Start(t).Addr()}).Addr()
	if err := plainClient(t, &redis.Options{Addr: proxy}).Get(t.Context(), "x").Err(); err == nil || errors.Is(err, redis.Nil) {
		t.Errorf("go-redis alone: %v, want that the proxy closes the connection: if it does not, withoutHello is not needed", err)
	}
	run(t, Config{URL: proxy, KeyFormat: ReferenceKeys, OpTimeout: slow, DialTimeout: slow}, true)
}

// TestPlainRenewal: go-redis closes an expired connection before it has a new one, and so fails while the password is wrong. See
// [writer.renew], and TestF30_TokensThatEnd for a backend.
func TestPlainRenewal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "user app on >right ~* +@all")
	var password atomic.Value
	password.Store("right")
	c := plainClient(t, &redis.Options{Addr: s.Addr(), PoolSize: 1, ConnMaxLifetime: time.Millisecond, CredentialsProviderContext: func(context.Context) (string, string, error) {
		return "app", password.Load().(string), nil
	}})
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	password.Store("wrong")
	testkit.Eventually(t, "an error of go-redis alone", func() bool { return c.Ping(t.Context()).Err() != nil })
}

// TestPlainDialing: after as many failures as the pool has connections, go-redis dials only once per second, in the background. So a link
// dials by itself. See [link].
func TestPlainDialing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill()
	c := plainClient(t, &redis.Options{Addr: s.Addr(), PoolSize: 1})
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a server that is dead answers")
	}
	s.Restart()
	late := false
	testkit.Eventually(t, "a connection", func() bool {
		err := c.Ping(t.Context()).Err()
		late = late || err != nil
		return err == nil
	})
	if !late {
		t.Error("go-redis alone dials at once: a link need not dial by itself")
	}
}

// TestPlainDialer: a pool does not pass the caller's context to its dialer, so a client shared by all writers of a node could not use the
// connection opened by one of them. See [link].
func TestPlainDialer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	type caller struct{}
	var told atomic.Bool
	c := plainClient(t, &redis.Options{Addr: s.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		told.Store(ctx.Value(caller{}) != nil)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	conn := c.Conn()
	defer conn.Close()
	if err := conn.Ping(context.WithValue(t.Context(), caller{}, 1)).Err(); err != nil {
		t.Fatal(err)
	}
	if told.Load() {
		t.Error("go-redis dials with its caller's context: writers can share a client")
	}
}

// plainHost reports whether go-redis alone reaches the nodes of a cluster.
func plainHost(t *testing.T, seed string) bool {
	t.Helper()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{seed}, Protocol: 2, DisableIdentity: true, MaxRetries: -1, MaxRedirects: -1})
	defer func() { _ = c.Close() }()
	var all []string
	err := c.ForEachMaster(t.Context(), func(_ context.Context, m *redis.Client) error {
		all = append(all, m.Options().Addr)
		return nil
	})
	return err == nil && slices.Equal(all, []string{seed})
}

// plainSet sets a key with go-redis alone, on the server that it considers the master.
func plainSet(t *testing.T, sentinels []string, key string) {
	t.Helper()
	c := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: sentinels, Protocol: 2, DisableIdentity: true, MaxRetries: -1,
	})
	defer func() { _ = c.Close() }()
	if err := c.Set(t.Context(), key, "x", time.Minute).Err(); err != nil {
		t.Log(err)
	}
}
