package remote

import (
	"net"
	"strconv"
	"strings"
)

// Credentials reports whether an address without a scheme seems to have a user or a password in front of its host, as in
// user:password@host:port. Such an address was meant as a URL, and leads nowhere: it must be invalid, and no part of it may be
// printed or looked up. Paths of sockets, and names of abstract ones, may contain an @.
func Credentials(address string) bool {
	at := strings.LastIndexByte(address, '@')
	if at < 1 {
		return false // there is none, or it begins the name of an abstract socket
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

// hostPort reports whether s is a host and the number of a port.
func hostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.Contains(host, "/") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
