package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// redisAccess is B16.
func redisAccess(ctx context.Context, e *env) {
	good, all := 0, 0
	r := e.redis(ctx, user("app on >right ~* &* +@all", "narrow on >right ~* &* +@all -eval -evalsha")...)
	e.must(r.Do(ctx, "CONFIG", "SET", "requirepass", "default-secret").Err())
	for name, auth := range map[string]string{"no password": "", "wrong password": "app:planted-wrong", "NOPERM": "narrow:right"} {
		all++
		good += boolInt(e.deniedByRedis(ctx, name, "noauth", "REDIS_URL="+r.addr, "REDIS_AUTH="+auth))
	}
	ca, other := newAuthority("Redis"), newAuthority("another")
	trusted := e.writeFile("redis-ca.pem", ca.PEM)
	for _, c := range []struct {
		name, says string
		ca         authority
		template   x509.Certificate
	}{
		{"wrong name", "certificate", ca, x509.Certificate{DNSNames: []string{"elsewhere"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}}},
		{"wrong CA", "certificate", other, x509.Certificate{}},
		{"expired", "expired", ca, x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}},
		{"", "", ca, x509.Certificate{}}, // a valid one
	} {
		addr := e.secureRedis(ctx, c.ca, c.template)
		vars := []string{"REDIS_URL=" + addr, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + trusted}
		if c.name == "" {
			e.startServer(ctx, endless, vars...)
			continue
		}
		all++
		good += boolInt(e.deniedByRedis(ctx, "TLS "+c.name, c.says, vars...))
	}
	calls, failures := rotatePassword(ctx, e)
	all, good = all+1, good+boolInt(failures == 0)
	e.measured(good == all, "%d of %d", good, all)
	e.measured(failures == 0, "rotation: %d of %d calls failed", failures, calls)
}

// user returns options that define users of Redis.
func user(all ...string) (options []string) {
	for _, u := range all {
		options = append(append(options, "--user"), strings.Fields(u)...)
	}
	return options
}

// deniedByRedis starts a server that Redis rejects. It reports whether /readyz contains says, calls fail, and no secret is
// revealed.
func (e *env) deniedByRedis(ctx context.Context, name, says string, vars ...string) bool {
	s := e.server(ctx, endless, append(vars, "LOG_LEVEL=trace")...)
	s.Ready = proc.Listens(s.HTTP)
	e.must(s.Start(ctx))
	defer s.Kill()
	c := s.rls()
	page := ""
	_, named := poll(ctx, patience, func() bool {
		page, _ = proc.Get(ctx, "http://"+s.HTTP+"/readyz")
		return strings.Contains(page, says)
	})
	_, err := c.ShouldRateLimit(ctx, ask("shop", "user=a"))
	log, err2 := os.ReadFile(s.log)
	e.must(err2)
	secret := strings.Contains(page+fmt.Sprint(err)+string(log), "planted")
	ok := named && err != nil && !secret
	e.note("%s: /readyz %q, a call: %v", name, page, err)
	if !ok {
		e.measured(false, "%s: named %t, secret shown %t, error %v", name, named, secret, err)
	}
	return ok
}

// secureRedis starts a Redis that accepts only TLS, and returns its address.
func (e *env) secureRedis(ctx context.Context, ca authority, template x509.Certificate) string {
	port := e.port(ctx)
	pair := ca.issue(template)
	cert := e.writeFile("redis"+port+".pem", pair.Cert)
	key := e.writeFile("redis"+port+"-key.pem", pair.Key)
	p := e.process("redis", e.config.redis, "--bind", "127.0.0.1", "--port", "0", "--tls-port", port, "--save", "", "--dir", e.dir,
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	p.Ready = proc.Listens("127.0.0.1:" + port)
	e.must(p.Start(ctx))
	return "127.0.0.1:" + port
}

// rotatePassword replaces the password of a user under load: it adds the second one, gives it to the server, and removes the
// first. Then it kills connections between calls, as cautious operators do.
func rotatePassword(ctx context.Context, e *env) (calls, failures int) {
	r := e.redis(ctx, user("app on >first ~* &* +@all")...)
	file := e.writeFile("auth", []byte("app:first\n"))
	s := e.startServer(ctx, endless, "REDIS_URL="+r.addr, "REDIS_AUTH_FILE="+file, patient)
	c := s.rls()
	l := load{addr: s.GRPC, requests: values("user", 50), rate: 500, timeout: 10 * time.Second}.start(ctx)
	for _, step := range []func(){
		func() { e.must(r.Do(ctx, "ACL", "SETUSER", "app", ">second").Err()) },
		func() { e.writeFile("auth", []byte("app:second\n")) },
		func() { e.must(r.Do(ctx, "ACL", "SETUSER", "app", "<first").Err()) },
		func() {},
	} {
		step()
		e.sleep(ctx, 700*time.Millisecond)
	}
	all := l.stop()
	e.note("rotation: %s", all)
	calls, failures = len(all), len(all)-len(all.of(okay))
	for range 20 {
		e.must(r.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
		for range 10 {
			calls++
			if _, err := c.ShouldRateLimit(ctx, ask("shop", "user=a")); err != nil {
				e.note("after connections were killed: %v", err)
				failures++
			}
		}
	}
	return calls, failures
}
