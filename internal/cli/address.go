package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// address is where --addr says that a server is.
type address struct {
	target string // host:port, or unix:PATH
	tls    bool   // it is a URL that asks for TLS
}

// addressTakes says what --addr takes.
const addressTakes = "must be a host, host:port, http://host:port, https://host:port or unix:PATH"

// parseAddress reads the value of --addr. A host without a port has the given one, which is that of GRPC_PORT, or empty.
func parseAddress(text, port string) (address, error) {
	a, err := readAddress(text, port)
	if err != nil {
		return a, fmt.Errorf("--addr %q: %w: %s", text, err, addressTakes)
	}
	return a, nil
}

func readAddress(text, port string) (a address, err error) {
	scheme, rest, isURL := strings.Cut(text, "://")
	switch {
	case strings.TrimSpace(text) == "":
		return a, errors.New("it is empty")
	case strings.HasPrefix(text, "/"):
		return address{target: "unix:" + text}, nil
	case strings.HasPrefix(text, "unix:") && strings.Trim(text, "/") == "unix:":
		return a, errors.New("it has no path")
	case strings.HasPrefix(text, "unix:"):
		return address{target: text}, nil
	case isURL:
		if text, err = hostOfURL(strings.ToLower(scheme), rest); err != nil {
			return a, err
		}
		a.tls = strings.HasSuffix(strings.ToLower(scheme), "s") && scheme != "dns"
	}
	a.target, err = hostPort(text, port)
	return a, err
}

// hostOfURL returns the host, and the port if there is one, of a URL, which is given without its scheme.
func hostOfURL(scheme, rest string) (string, error) {
	switch scheme {
	case "http", "https", "grpc", "grpcs":
	case "dns":
		return strings.TrimPrefix(rest, "/"), nil // as gRPC spells it, dns:///host:port
	default:
		return "", fmt.Errorf("its scheme %q is not known", scheme)
	}
	u, err := url.Parse(scheme + "://" + rest)
	switch {
	case err != nil:
		return "", errors.New("it is not a URL")
	case u.Hostname() == "":
		return "", errors.New("it has no host")
	case u.User != nil:
		return "", errors.New("it has a user or a password, which belong in --token-file")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("it has something after %s, where gRPC has nothing", u.Host)
	}
	return u.Host, nil
}

// hostPort completes text to host:port.
func hostPort(text, port string) (string, error) {
	switch {
	case strings.Contains(text, ","):
		return "", errors.New("it is a list, and one address is needed")
	case strings.ContainsAny(text, " \t\n"):
		return "", errors.New("it has a blank in it")
	case strings.Contains(text, "/"):
		return "", fmt.Errorf("it has something after %s, where gRPC has nothing", text[:strings.Index(text, "/")])
	case isIP(text):
		return withPort(text, port)
	case strings.ContainsAny(text, "[]"):
		ip, own, closed := strings.Cut(strings.TrimPrefix(text, "["), "]")
		switch {
		case text[0] != '[' || !closed || !isIP(ip) || own != "" && own[0] != ':':
			return "", errors.New("its brackets do not enclose an IPv6 address, as in [::1]:8081")
		case own == "":
			return withPort(ip, port)
		}
	case !strings.Contains(text, ":"):
		return withPort(text, port)
	}
	host, own, err := net.SplitHostPort(text)
	if err != nil {
		return "", errors.New("it has more than one colon, so an IPv6 address, if it is one, goes into brackets, as in [::1]:8081")
	}
	if !isPort(own) {
		return "", fmt.Errorf("its port %q is not a number from 1 to 65535", own)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, own), nil
}

// isIP reports whether text is an IP address, which may have a zone, as in fe80::1%eth0.
func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

var errNoPort = errors.New("it has no port")

func withPort(host, port string) (string, error) {
	if port == "" {
		return "", errNoPort
	}
	return net.JoinHostPort(host, port), nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
