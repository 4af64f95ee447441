package redis

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// target is the parsed URL of a [Config].
type target struct {
	network string
	addrs   []string // of servers, or of sentinels
	master  string   // the master's name in the sentinels
	db      int
	auth    string // user:password for the servers; may be empty
	guards  string // user:password for the sentinels; may be empty
	tls     bool
}

// Errors of addresses never quote the address, because it may contain a password.
var (
	errURL = errors.New("it must be host:port, redis://[user[:password]@]host:port[/db], rediss://… or the path of a socket")

	errScheme = errors.New("a user or a password is in front of its host, but no scheme: write redis://user:password@host:port, " +
		"or rediss:// for TLS, with / ? # % and @ in the password as %2F %3F %23 %25 and %40; or only host:port, and set the password separately")
	errEscapes = errors.New("an @ is where a URL has none: in its user and password write / ? # % and @ as %2F %3F %23 %25 and %40")
)

// parse reads the URL of c.
func (c *Config) parse() (target, error) {
	t := target{network: c.Network}
	if c.Type != Single {
		t.network = "tcp"
	}
	if c.Type == Single && t.network == "unix" && socketPath(c.URL) && !remote.Credentials(c.URL) {
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
		if t.master, parts = strings.TrimSpace(parts[0]), parts[1:]; strings.Contains(t.master, "@") {
			return t, errors.New("redis: the master's name has an @ in it, as if it had a password: write name,host:port, and set passwords apart")
		}
	}
	for i, part := range parts {
		if err := t.add(strings.TrimSpace(part)); err != nil {
			return t, fmt.Errorf("redis: address %d of %d: %w", i+1, len(parts), err)
		}
	}
	if c.Type == Sentinel { // the addresses are the sentinels'
		t.guards, t.auth = t.auth, ""
	}
	if c.Type == Cluster && t.db != 0 {
		return t, errors.New("redis: a cluster only has database 0")
	}
	return t, nil
}

// socketPath reports whether s is the path of a socket, or the name of an abstract one, rather than a host or a URL. It is if s contains
// a slash or has a usual suffix of sockets.
func socketPath(s string) bool {
	return !strings.Contains(s, "://") && (strings.Contains(s, "/") || strings.HasPrefix(s, "@") || strings.HasSuffix(s, ".sock") || strings.HasSuffix(s, ".socket"))
}

// add adds one server to t. A server with a host uses TCP.
func (t *target) add(s string) error {
	if t.network == "unix" {
		t.network = "tcp"
	}
	if !strings.Contains(s, "://") {
		if remote.Credentials(s) {
			return errScheme
		}
		host, port, err := net.SplitHostPort(s)
		usual := ":6379"
		if t.master != "" {
			usual = ":26379"
		}
		switch {
		case net.ParseIP(s) != nil && strings.Contains(s, ":"):
			return fmt.Errorf("it has no port, and an IPv6 address goes into brackets: make it [%s]%s; %w", s, usual, errURL)
		case err != nil || port == "":
			return fmt.Errorf("it has no port: add %s; %w", usual, errURL)
		}
		return t.reach(host, port)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil && strings.Contains(s, "@"):
		return fmt.Errorf("it is not a URL; %w; %w", errEscapes, errURL)
	case err != nil:
		return fmt.Errorf("it is not a URL; %w", errURL)
	case strayAt(u):
		return fmt.Errorf("%w; %w", errEscapes, errURL)
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
	if err := t.reach(u.Hostname(), port); err != nil {
		return err
	}
	db := strings.Trim(u.Path, "/")
	if db == "" {
		db = u.Query().Get("db")
	}
	return t.options(u, db)
}

// strayAt reports whether u has an @ after its host, other than in the path of a socket or in a password there. Then a /, ? or # in a
// user or password probably ended the host.
func strayAt(u *url.URL) bool {
	if strings.Contains(u.Fragment, "@") || u.Scheme != "unix" && strings.Contains(u.Path, "@") {
		return true
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		if name, _, _ := strings.Cut(pair, "="); strings.Contains(pair, "@") && name != "username" && name != "password" {
			return true
		}
	}
	return false
}

// reach adds the address of a server.
func (t *target) reach(host, port string) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("its port is not a number from 1 to 65535; %w", errURL)
	}
	t.addrs = append(t.addrs, net.JoinHostPort(host, port))
	return nil
}

// options parses the database and the credentials of u, as the reference does.
func (t *target) options(u *url.URL, db string) error {
	if db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return fmt.Errorf("its database is not a number; %w", errURL)
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
	if password != "" && t.auth == "" { // the first one counts, as in the reference
		t.auth = user + ":" + password
	}
	return nil
}
