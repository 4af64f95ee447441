package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func (p *program) keyCommand() *cobra.Command {
	var (
		flags ruleFlags
		o     output
	)
	cmd := &cobra.Command{
		Use:   "key --config DIR DOMAIN DESCRIPTOR...",
		Short: "Print the name of a counter in the store",
		Long: `Key reads the rules in DIR and prints the name of each descriptor's counter in the store. The states
of its limits and its penalty have this name with a short suffix. The server puts CACHE_KEY_PREFIX
before it. With REDIS_KEY_FORMAT=reference, MEMCACHE_KEY_FORMAT=reference or BACKEND_TYPE=memcache it
is the name in the current window. CACHE_KEY_SECRET_FILE must be that of the servers. A descriptor
without a limit is an error. --output json prints an object for each descriptor.

` + descriptorHelp + `
` + optionHelp,
		Example: `  ratelimitd key --config config/example example fixed=ann
  redis-cli --scan --pattern "$(ratelimitd key --config config/example example fixed=ann)*"`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
	}
	p.eachDescriptor(cmd, &flags, func(_ *descriptors.Set, domain *descriptors.Domain, d *descriptor) error {
		rule := domain.Match(d.keys()).Rule
		if (rule == nil || rule.Unlimited) && !overridden(domain, d) {
			return fmt.Errorf("descriptor %q: %w", d.text, errNotLimited)
		}
		key := flags.counterKey(domain, d)
		if o.json() {
			return p.printObject(struct {
				Domain     string `json:"domain"`
				Descriptor string `json:"descriptor"` // as it was given
				Key        string `json:"key"`
			}{domain.Name, d.text, key})
		}
		p.printf("%s\n", key)
		return nil
	})
	o.add(cmd)
	return cmd
}

var errNotLimited = errors.New("not limited, so it has no counter; see ratelimitd explain")

// counterKey returns the name of the counter of d, which must be limited, in the store.
func (f *ruleFlags) counterKey(domain *descriptors.Domain, d *descriptor) string {
	keys := d.keys()
	match, own := domain.Match(keys), overridden(domain, d)
	limit := func() engine.Limit {
		if own {
			item, _ := match.Override(*d.limit) // overridden has checked it
			return item.Limit
		}
		return match.Rule.RateLimits.Limits()[0]
	}
	op := backend.Op{
		Key:    f.secret.Hash(match.AppendName(f.secret.Begin(nil), domain, keys, own)),
		Name:   match.AppendReferenceName(nil, domain, keys, own),
		Limits: engine.Limits{limit()},
	}
	return server.CounterKey(&f.store, &op, engine.Micros(time.Now().UnixMicro()))
}

// overridden reports whether the limit that d brings along is used.
func overridden(domain *descriptors.Domain, d *descriptor) bool {
	if d.limit == nil || !domain.AllowOverride {
		return false
	}
	_, err := domain.Match(d.keys()).Override(*d.limit)
	return err == nil
}
