package probe

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTooOld(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{
		"redis_version:6.0.16\r\n":                         "this is Redis 6.0.16, which is too old: Redis 6.2 or later, or Valkey 7.2 or later, is required",
		"redis_version:5.0.7\r\n":                          "this is Redis 5.0.7",
		"redis_version:6.2.0\r\n":                          "",
		"redis_version:8.2.1\r\n":                          "",
		"redis_version:7.2.4\r\nvalkey_version:7.2.5\r\n":  "",
		"redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n":  "",
		"redis_version:7.2.4\r\nvalkey_version:7.1.99\r\n": "this is Valkey 7.1.99",
		"": "",
	} {
		s := parseInfo(info)
		err := s.Old()
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", info, err, want)
		}
	}
}

// TestUnknownCommands: replies of servers and proxies that do not have a command, and of those that have it and fail.
func TestUnknownCommands(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]bool{
		"ERR unknown command 'eval', with args beginning with: 'return 0'": true,
		"ERR unknown command eval":                                      true,
		"unsupported command 'eval'":                                    true, // Envoy
		"ERR Command is not available: 'EVAL'. See https://upstash.com": true,
		"ERR command eval not support for your account":                 true, // a cloud's, in redisson's issue 4389
		"ERR command 'EVAL' is not allowed":                             true,
		"ERR Command not supported":                                     true,
		"OOM command not allowed when used memory > 'maxmemory'.":       false,
		"ERR Error running script (call to f_0): -OOM command not allowed when used memory > 'maxmemory'.": false,
		"ERR Connection refused": false, // Twemproxy's, of a server that is down
		"NOPERM this user has no permissions to run the 'eval' command": false,
		"LOADING Redis is loading the dataset in memory":                false,
	} {
		c := NewCommand("eval")
		c.SetErr(errors.New(reply))
		if got := notKnown(c); got != want {
			t.Errorf("%s: means that the command is missing: %t, want %t", reply, got, want)
		}
	}
}

// TestKnown: what a server lacks is news once, and is forgotten after as long as a connection lasts.
func TestKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d Known
		for _, step := range []struct {
			missing []string
			news    bool
		}{{[]string{"info"}, true}, {[]string{"info"}, false}, {[]string{"info", "echo"}, true}, {nil, false}, {[]string{"info"}, true}} {
			if got := d.Note("a", Capabilities{missing: step.missing}); got != step.news {
				t.Errorf("%v is news: %t, want %t", step.missing, got, step.news)
			}
		}
		if known := d.Of("a"); known.Has("info") || !known.Has("echo") {
			t.Errorf("known: %+v, want that it lacks INFO alone", known)
		}
		time.Sleep(knownFor)
		if known := d.Of("a"); !known.Has("info") {
			t.Errorf("after %v: %+v, want that nothing is known", knownFor, known)
		}
		if d.Note("a", Capabilities{missing: []string{"info"}}) {
			t.Error("the same is news again")
		}
	})
}
