package cli

import (
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"localhost", "localhost:8081"},
		{"10.0.0.7", "10.0.0.7:8081"},
		{"10.0.0.7:99", "10.0.0.7:99"},
		{":99", "127.0.0.1:99"},
		{"::1", "[::1]:8081"},
		{"[::1]", "[::1]:8081"},
		{"[::1]:99", "[::1]:99"},
		{"fe80::1%eth0", "[fe80::1%eth0]:8081"},
		{"[fe80::1%eth0]", "[fe80::1%eth0]:8081"},
		{"[fe80::1%eth0]:99", "[fe80::1%eth0]:99"},
		{"http://limits", "limits:8081"},
		{"http://limits:99/", "limits:99"},
		{"grpc://limits:99", "limits:99"},
		{"HTTPS://limits:99", "limits:99 tls"},
		{"https://[::1]", "[::1]:8081 tls"},
		{"http://[fe80::1%25eth0]:99", "[fe80::1%eth0]:99"},
		{"grpcs://limits", "limits:8081 tls"},
		{"dns:///limits:99", "limits:99"},
		{"unix:/run/a.sock", "unix:/run/a.sock"},
		{"unix:///run/a.sock", "unix:///run/a.sock"},
		{"unix:a.sock", "unix:a.sock"},
		{"/run/a.sock", "unix:/run/a.sock"},

		{"", "it is empty"},
		{"unix:", "it has no path"},
		{"unix://", "it has no path"},
		{"a,b:99", "it is a list"},
		{"a b", "it has a blank in it"},
		{"limits:8080/json", "it has something after limits:8080, where gRPC has nothing"},
		{"http://limits:8080/json", "it has something after limits:8080, where gRPC has nothing"},
		{"http://limits/?a=b", "it has something after limits, where gRPC has nothing"},
		{"http://ann:secret@limits", "it has a user or a password, which belong in --token-file"},
		{"http://", "it has no host"},
		{"http://li mits", "it is not a URL"},
		{"http://limits:port", "it is not a URL"},
		{"redis://limits", `its scheme "redis" is not known`},
		{"limits:", `its port "" is not a number from 1 to 65535`},
		{"limits:0", `its port "0" is not a number from 1 to 65535`},
		{"limits:grpc", `its port "grpc" is not a number from 1 to 65535`},
		{"limits:65536", `its port "65536" is not a number from 1 to 65535`},
		{"::1:8081:x", "it has more than one colon"},
		{"a:b:c", "it has more than one colon"},
		{"[::1:8081", "its brackets do not enclose an IPv6 address"},
		{"[::1", "its brackets do not enclose an IPv6 address"},
		{"::1]:8081", "its brackets do not enclose an IPv6 address"},
		{"[[::1]]", "its brackets do not enclose an IPv6 address"},
		{"[::1]8081", "its brackets do not enclose an IPv6 address"},
		{"[limits", "its brackets do not enclose an IPv6 address"},
		{"[limits]:99", "its brackets do not enclose an IPv6 address"},
		{"[]:99", "its brackets do not enclose an IPv6 address"},
		{"[fe80::1%]:99", "its brackets do not enclose an IPv6 address"},
	} {
		a, err := parseAddress(c.text, "8081")
		got := a.target
		if a.tls {
			got += " tls"
		}
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && (!strings.Contains(got, ": "+c.want) || !strings.Contains(got, addressTakes)) {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
	}
}
