package redis

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// target is the parsed URL of a [Config].
type target struct {
	network string
	addrs   []string // of servers, or of sentinels
	master  string   // the name that sentinels know the master by
	db      int
	auth    string // user:password, or empty
	tls     bool
}

// errURL never repeats the URL, which may hold a password.
var errURL = errors.New("it takes host:port, redis://[user[:password]@]host:port[/db] or rediss://…")

// parse reads the URL of c.
func (c *Config) parse() (target, error) {
	t := target{network: c.Network}
	if c.Type != Single {
		t.network = "tcp"
	}
	if c.Type == Single && t.network == "unix" && !strings.Contains(c.URL, "://") && !hostAndPort(c.URL) {
		t.addrs = []string{c.URL}
		return t, nil
	}
	parts := []string{c.URL}
	if c.Type != Single {
		parts = strings.Split(c.URL, ",")
	}
	if c.Type == Sentinel {
		if len(parts) < 2 {
			return t, errors.New("redis: expected master name and a list of urls for the sentinels, in the format: " +
				"<redis master name>,<sentinel1>,...,<sentineln>")
		}
		t.master, parts = strings.TrimSpace(parts[0]), parts[1:]
	}
	for i, part := range parts {
		if err := t.add(strings.TrimSpace(part)); err != nil {
			return t, fmt.Errorf("redis: address %d of %d: %w", i+1, len(parts), err)
		}
	}
	if c.Type == Cluster && t.db != 0 {
		return t, errors.New("redis: a cluster has no databases but 0")
	}
	return t, nil
}

// hostAndPort reports whether s is host:port rather than the path of a socket.
func hostAndPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil || strings.Contains(s, "/") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// add adds one server to t. A server with a host is reached by TCP.
func (t *target) add(s string) error {
	if t.network == "unix" {
		t.network = "tcp"
	}
	if !strings.Contains(s, "://") {
		host, port, err := net.SplitHostPort(s)
		if err != nil || port == "" {
			return fmt.Errorf("it has no port; %w", errURL)
		}
		t.addrs = append(t.addrs, net.JoinHostPort(host, port))
		return nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("it is no URL; %w", errURL)
	}
	switch u.Scheme {
	case "redis":
	case "rediss":
		t.tls = true
	case "unix":
		t.network, t.addrs = "unix", []string{u.Path}
		return t.options(u, u.Query().Get("db"))
	default:
		return fmt.Errorf("its scheme is not known; %w", errURL)
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	t.addrs = append(t.addrs, net.JoinHostPort(u.Hostname(), port))
	db := strings.Trim(u.Path, "/")
	if db == "" {
		db = u.Query().Get("db")
	}
	return t.options(u, db)
}

// options reads the database and the credentials from u, as the reference does.
func (t *target) options(u *url.URL, db string) error {
	if db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return fmt.Errorf("its database is no number; %w", errURL)
		}
		t.db = n
	}
	user, password := u.User.Username(), ""
	if p, ok := u.User.Password(); ok {
		password = p
	}
	if q := u.Query(); q.Has("password") || q.Has("username") {
		user, password = q.Get("username"), q.Get("password")
	}
	if password != "" {
		t.auth = user + ":" + password
	}
	return nil
}
