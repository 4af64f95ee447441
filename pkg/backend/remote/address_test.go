package remote

import (
	"testing"
)

// TestCredentials: an @ is part of the path of a socket, or follows a password, which must stay secret.
func TestCredentials(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"user:word@host:1":      true,
		"word@host:1":           true,
		":word@host:1":          true,
		"user:word@host":        true,
		"word@host":             true,
		"user:word@[::1]:1":     true,
		"user:wo/rd@host:1":     true,
		"user:w@rd@host:1":      true,
		"/word@host:1":          true,
		"@word@host:1":          true,
		".word@host:1":          true,
		"//user:word@host":      true,
		"user:wo/rd@host:1/2":   true,
		"user:word@/run/r.sock": true,
		"word@/run/r.sock":      true,
		"user:word@":            true,
		"host:1":                false,
		"[::1]:1":               false,
		"":                      false,
		"@":                     false,
		"@redis":                false,
		"@redis@1":              false,
		"/run/redis@1.sock":     false,
		"/run/redis@1/sock":     false,
		"/run/redis@host:x":     false,
		"/a@b/host:1":           false,
		"./redis@1":             false,
		"run/redis@1.sock":      false,
		"run@1/redis.socket":    false,
	} {
		if got := Credentials(address); got != want {
			t.Errorf("%q: %t, want %t", address, got, want)
		}
	}
}
