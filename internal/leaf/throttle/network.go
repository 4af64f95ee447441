package throttle

import "net/netip"

// Network returns the address of a connection without its port. For IPv6 it returns the /64 network, since one machine has all of its
// addresses.
func Network(from string) string {
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		return from
	}
	ip := at.Addr().Unmap().WithZone("")
	if net, err := ip.Prefix(64); err == nil && ip.Is6() && !ip.IsLoopback() {
		return net.String()
	}
	return ip.String()
}
