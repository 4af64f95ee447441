package count

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCounterNeverWraps(t *testing.T) {
	var c Counter
	c.Add(3)
	c.Add(0)
	if got := c.Load(); got != 3 {
		t.Fatalf("after 3 and 0 the counter is at %d", got)
	}
	before := uint64(0)
	for range 5000 {
		c.Add(math.MaxUint64)
		if now := c.Load(); now < before {
			t.Fatalf("the counter fell from %d to %d", before, now)
		} else {
			before = now
		}
	}
	if before != most {
		t.Errorf("the counter ends at %d, want %d", before, uint64(most))
	}
}

func TestNewKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		levels []string
		want   Key
	}{
		{"no level", nil, Key{Text: "shop", Domain: "shop"}},
		{"one level", []string{"user_u1"}, Key{Text: "shop.user_u1", Domain: "shop", Key1: "user_u1"}},
		{"what lies deeper is in no label", []string{"a", "b_1", "c", "d"}, Key{Text: "shop.a.b_1.c.d", Domain: "shop", Key1: "a", Key2: "b_1"}},
		{"dots stay where they are", []string{"host_a.example.com", "v_1.2"}, Key{Text: "shop.host_a.example.com.v_1.2", Domain: "shop", Key1: "host_a.example.com", Key2: "v_1.2"}},
		{"what statsd gives a meaning to", []string{"a_x:1|c"}, Key{Text: "shop.a_x_1_c", Domain: "shop", Key1: "a_x_1_c"}},
		{"an address", []string{"remote_address_10.0.0.255"}, Key{Text: "shop.remote_address_10_0_0_255", Domain: "shop", Key1: "remote_address_10_0_0_255"}},
		{"bytes that are no UTF-8", []string{"a_\xff\xfe"}, Key{Text: "shop.a_\uFFFD", Domain: "shop", Key1: "a_\uFFFD"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, NewKey("shop", c.levels...)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
