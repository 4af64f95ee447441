package remote

import (
	"net"
	"strconv"
	"strings"
)

// Credentials reports whether an address without a scheme seems to contain a user or a password before its host, as in
// user:password@host:port. Such an address was meant as a URL and must be rejected as invalid, without printing it or resolving any part
// of it. Paths of sockets, and names of abstract ones, may contain an @.
func Credentials(address string) bool {
	at := strings.LastIndexByte(address, '@')
	if at < 1 {
		return false // no @, or the name of an abstract socket
	}
	before, after := address[:at], address[at+1:]
	if hostPort(after) || strings.HasPrefix(address, "//") {
		return true
	}
	if strings.HasPrefix(address, "@") || strings.HasPrefix(address, "/") || strings.HasPrefix(address, ".") {
		return false
	}
	return strings.Contains(before, ":") || strings.HasPrefix(after, "/") || !strings.Contains(address, ".sock")
}

// hostPort reports whether s is a host and a numeric port.
func hostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.Contains(host, "/") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
