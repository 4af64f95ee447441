package redis

import (
	"strings"
	"testing"
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
		err := s.old()
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", info, err, want)
		}
	}
}
