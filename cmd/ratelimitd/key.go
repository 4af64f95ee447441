package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func (p *program) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key --config DIR DOMAIN DESCRIPTOR...",
		Short: "Print the name under which a descriptor's counter is kept",
		Long: `Key reads the rules in DIR and prints, for each descriptor, the name of its counter in a store.
The states of its limits and of its penalty lie under this name with a short suffix each. A
descriptor that is not limited has none, which is an error. CACHE_KEY_PREFIX is put before it; with
REDIS_KEY_FORMAT=reference it is the name that envoyproxy/ratelimit has for the present window.
With BACKEND_TYPE=memcache it is the whole name in the present window, and with
MEMCACHE_KEY_FORMAT=reference that of envoyproxy/ratelimit.

` + descriptorHelp + `
` + optionHelp,
		Example: `  ratelimitd key --config config/example example fixed=ann
  redis-cli --scan --pattern "$(ratelimitd key --config config/example example fixed=ann)*"`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
	}
	p.eachDescriptor(cmd, func(domain *descriptors.Domain, d *descriptor) error {
		rule := domain.Match(d.keys()).Rule
		if (rule == nil || rule.Unlimited) && !overridden(domain, d) {
			return fmt.Errorf("descriptor %q: %w", d.text, errNotLimited)
		}
		p.printf("%s\n", p.counterKey(domain, d))
		return nil
	})
	return cmd
}

var errNotLimited = errors.New("not limited, so it has no counter; ratelimitd explain tells why")

// counterKey returns the name of the counter of d, which must be limited, in a store.
func (p *program) counterKey(domain *descriptors.Domain, d *descriptor) string {
	keys, prefix := d.keys(), p.env("CACHE_KEY_PREFIX")
	match, own := domain.Match(keys), overridden(domain, d)
	hash := descriptors.Hash(match.AppendName(nil, domain, keys, own))
	if !p.onMemcached() && !p.referenceKeys() {
		return prefix + "rl:{" + base64.RawURLEncoding.EncodeToString(hash[:]) + "}"
	}
	var limit engine.Limit
	if own {
		item, _ := match.Override(*d.limit) // overridden has checked it
		limit = item.Limit
	} else {
		limit = match.Rule.Limits[0]
	}
	name := match.AppendReferenceName(nil, domain, keys, own)
	now := engine.Micros(time.Now().UnixMicro())
	if p.onMemcached() {
		c := memcached.Config{KeyPrefix: prefix}
		if p.referenceKeys() {
			c.KeyFormat = memcached.ReferenceKeys
		}
		return c.Key(&backend.Op{Key: hash, Name: name, Limits: engine.Limits{limit}}, now)
	}
	start, _ := limit.WindowAt(now)
	return fmt.Sprintf("%s%s%d", prefix, name, start/1e6)
}

// onMemcached reports whether counters live in memcached.
func (p *program) onMemcached() bool { return p.env("BACKEND_TYPE") == "memcache" }

// referenceKeys reports whether counters are kept under the reference's names.
func (p *program) referenceKeys() bool {
	variable := "REDIS_KEY_FORMAT"
	if p.onMemcached() {
		variable = "MEMCACHE_KEY_FORMAT"
	}
	return strings.EqualFold(p.env(variable), "reference")
}

// storeCheck returns a function that finds what the store does not support in rules; nil if it supports everything.
func (p *program) storeCheck() func(*descriptors.Set) descriptors.Problems {
	var s settings.Settings
	s.Backend.Type = "redis"
	switch {
	case p.onMemcached():
		s.Backend.Type = "memcache"
	case p.referenceKeys():
		s.Redis.KeyFormat = "reference"
	}
	return server.Unsupported(&s)
}

// overridden reports whether the limit that d brings along is used.
func overridden(domain *descriptors.Domain, d *descriptor) bool {
	if d.limit == nil || !domain.AllowOverride {
		return false
	}
	_, err := domain.Match(d.keys()).Override(*d.limit)
	return err == nil
}
