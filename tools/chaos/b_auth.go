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
func redisAccess(ctx context.Context, e *env) error {
	good, all := 0, 0
	r, err := e.redis(ctx, user("app on >right ~* &* +@all", "narrow on >right ~* &* +@all -eval -evalsha")...)
	if err != nil {
		return err
	}
	if err := r.Do(ctx, "CONFIG", "SET", "requirepass", "default-secret").Err(); err != nil {
		return err
	}
	for name, auth := range map[string]string{"no password": "", "wrong password": "app:planted-wrong", "NOPERM": "narrow:right"} {
		all++
		ok, err := e.deniedByRedis(ctx, name, "noauth", "REDIS_URL="+r.addr, "REDIS_AUTH="+auth)
		if err != nil {
			return err
		}
		good += boolInt(ok)
	}
	ca, other := newAuthority("Redis"), newAuthority("another")
	trusted, err := e.writeFile("redis-ca.pem", ca.PEM)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name, says string
		ca         authority
		template   x509.Certificate
	}{
		{"wrong name", "certificate", ca, x509.Certificate{DNSNames: []string{"elsewhere"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}}},
		{"wrong CA", "certificate", other, x509.Certificate{}},
		{"expired", "expired", ca, x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}},
		{"", "", ca, x509.Certificate{}}, // a good one
	} {
		addr, err := e.secureRedis(ctx, c.ca, c.template)
		if err != nil {
			return err
		}
		vars := []string{"REDIS_URL=" + addr, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + trusted}
		if c.name == "" {
			if _, err := e.startServer(ctx, endless, vars...); err != nil {
				return fmt.Errorf("a good certificate: %w", err)
			}
			continue
		}
		all++
		ok, err := e.deniedByRedis(ctx, "TLS "+c.name, c.says, vars...)
		if err != nil {
			return err
		}
		good += boolInt(ok)
	}
	calls, failures, err := rotatePassword(ctx, e)
	if err != nil {
		return err
	}
	all, good = all+1, good+boolInt(failures == 0)
	e.measured(good == all, "%d of %d", good, all)
	e.measured(failures == 0, "rotation: %d of %d calls failed", failures, calls)
	return nil
}

// user returns options that make users of Redis.
func user(all ...string) (options []string) {
	for _, u := range all {
		options = append(append(options, "--user"), strings.Fields(u)...)
	}
	return options
}

// deniedByRedis starts a server that Redis does not accept, and reports whether it says why, in the words of says, does
// not decide, and keeps the secret.
func (e *env) deniedByRedis(ctx context.Context, name, says string, vars ...string) (bool, error) {
	s, err := e.server(ctx, endless, append(vars, "LOG_LEVEL=trace")...)
	if err != nil {
		return false, err
	}
	s.Ready = proc.Listens(s.http)
	if err := s.Start(ctx); err != nil {
		return false, err
	}
	defer s.Kill()
	c, err := s.rls()
	if err != nil {
		return false, err
	}
	page := ""
	_, named := poll(ctx, patience, func() bool {
		page, _ = body(ctx, "http://"+s.http+"/readyz")
		return strings.Contains(page, says)
	})
	_, err = c.ShouldRateLimit(ctx, ask("shop", "user=a"))
	log, err2 := os.ReadFile(s.log)
	secret := strings.Contains(page+fmt.Sprint(err)+string(log), "planted")
	ok := named && err != nil && !secret
	e.note("%s: /readyz %q, a call: %v", name, page, err)
	if !ok {
		e.measured(false, "%s: named %t, secret shown %t, error %v", name, named, secret, err)
	}
	return ok, err2
}

// secureRedis starts a Redis that speaks TLS alone, with a certificate, and returns its address.
func (e *env) secureRedis(ctx context.Context, ca authority, template x509.Certificate) (string, error) {
	port, err := e.ports.Free(ctx)
	if err != nil {
		return "", err
	}
	pair := ca.issue(template)
	cert, err := e.writeFile("redis"+port+".pem", pair.Cert)
	if err != nil {
		return "", err
	}
	key, err := e.writeFile("redis"+port+"-key.pem", pair.Key)
	if err != nil {
		return "", err
	}
	p, err := e.process("redis", e.config.redis, "--bind", "127.0.0.1", "--port", "0", "--tls-port", port, "--save", "", "--dir", e.dir,
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	if err != nil {
		return "", err
	}
	p.Ready = proc.Listens("127.0.0.1:" + port)
	return "127.0.0.1:" + port, p.Start(ctx)
}

// rotatePassword gives the user a second password, the server that one, and takes the first away, under load; then
// connections are killed between calls, as many an operator does to be sure.
func rotatePassword(ctx context.Context, e *env) (calls, failures int, err error) {
	r, err := e.redis(ctx, user("app on >first ~* &* +@all")...)
	if err != nil {
		return 0, 0, err
	}
	file, err := e.writeFile("auth", []byte("app:first\n"))
	if err != nil {
		return 0, 0, err
	}
	s, err := e.startServer(ctx, endless, "REDIS_URL="+r.addr, "REDIS_AUTH_FILE="+file, patient)
	if err != nil {
		return 0, 0, err
	}
	c, err := s.rls()
	if err != nil {
		return 0, 0, err
	}
	l := load{addr: s.grpc, requests: values("user", 50), rate: 500, timeout: 10 * time.Second}.start(ctx)
	for _, step := range []func() error{
		func() error { return r.Do(ctx, "ACL", "SETUSER", "app", ">second").Err() },
		func() error { _, err := e.writeFile("auth", []byte("app:second\n")); return err },
		func() error { return r.Do(ctx, "ACL", "SETUSER", "app", "<first").Err() },
		func() error { return nil },
	} {
		if err == nil {
			err = step()
		}
		if err == nil {
			err = sleep(ctx, 700*time.Millisecond)
		}
	}
	all := l.stop()
	if err != nil {
		return 0, 0, err
	}
	e.note("rotation: %s", all)
	calls, failures = len(all), len(all)-len(all.of(okay))
	for range 20 {
		if err := r.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			return 0, 0, err
		}
		for range 10 {
			calls++
			if _, err := c.ShouldRateLimit(ctx, ask("shop", "user=a")); err != nil {
				e.note("after connections were killed: %v", err)
				failures++
			}
		}
	}
	return calls, failures, nil
}
