package cli

import (
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	const wrong = ": must be a host, host:port, http://host:port, https://host:port or unix:PATH"
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

		{"", wrong},
		{"unix:", wrong},
		{"unix://", wrong},
		{"a,b:99", wrong},
		{"a b", wrong},
		{"limits:8080/json", wrong},
		{"http://limits:8080/json", wrong},
		{"http://limits/?a=b", wrong},
		{"http://ann:secret@limits", wrong},
		{"http://", wrong},
		{"http://li mits", wrong},
		{"http://limits:port", wrong},
		{"redis://limits", wrong},
		{"limits:", wrong},
		{"limits:0", wrong},
		{"limits:grpc", wrong},
		{"limits:65536", wrong},
		{"::1:8081:x", wrong},
		{"a:b:c", wrong},
		{"[::1:8081", wrong},
		{"[::1", wrong},
		{"::1]:8081", wrong},
		{"[[::1]]", wrong},
		{"[::1]8081", wrong},
		{"[limits", wrong},
		{"[limits]:99", wrong},
		{"[]:99", wrong},
		{"[fe80::1%]:99", wrong},
	} {
		a, err := parseAddress(c.text, "8081")
		got := a.target
		if a.tls {
			got += " tls"
		}
		if err != nil {
			got = err.Error()
		}
		if (c.want == wrong) != (err != nil) || !strings.HasSuffix(got, c.want) {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
	}
}
