package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// address is where --addr says that a server is.
type address struct {
	target string // host:port, or unix:PATH
	tls    bool   // it is a URL that asks for TLS
}

var errNoPort = errors.New("the port is missing")

// parseAddress reads the value of --addr. A host without a port has the given one, which is that of GRPC_PORT, or empty.
func parseAddress(text, port string) (a address, err error) {
	wrong := fmt.Errorf("--addr %q: must be a host, host:port, http://host:port, https://host:port or unix:PATH", text)
	scheme, rest, isURL := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	switch {
	case strings.HasPrefix(text, "/"):
		return address{target: "unix:" + text}, nil
	case strings.HasPrefix(text, "unix:") && strings.Trim(text, "/") != "unix:":
		return address{target: text}, nil
	case isIP(text) && strings.Contains(text, ":"):
		rest = "[" + strings.ReplaceAll(text, "%", "%25") + "]"
	case scheme == "dns" && isURL:
		rest, isURL = strings.TrimPrefix(rest, "/"), false // as gRPC spells it, dns:///host:port
	case !isURL:
		rest = strings.ReplaceAll(text, "%", "%25")
	case !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, scheme):
		return a, wrong
	}
	u, err := url.Parse("//" + rest)
	if err != nil || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return a, wrong
	}
	host, own := u.Hostname(), u.Port()
	switch bracketed := strings.HasPrefix(u.Host, "["); {
	case bracketed && !isIP(host), !bracketed && strings.ContainsAny(host, ":[], "), strings.HasSuffix(u.Host, ":"):
		return a, wrong
	case host == "" && (isURL || own == ""), own != "" && !isPort(own):
		return a, wrong
	case host == "":
		host = "127.0.0.1"
	case own == "" && port == "":
		return a, errNoPort
	case own == "":
		own = port
	}
	return address{target: net.JoinHostPort(host, own), tls: isURL && strings.HasSuffix(scheme, "s")}, nil
}

// isIP reports whether text is an IP address, which may have a zone, as in fe80::1%eth0.
func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
