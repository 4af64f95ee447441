package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// families are beginnings of names that this server and the reference have to themselves. Other names may be anyone's, and are
// reported only if they are close to the name of a setting.
var families = regexp.MustCompile(`^(REDIS|MEMCACHE|RUNTIME|LIMIT|XDS|CONFIG_GRPC_XDS|NEAR_CACHE|TRACING)_`)

// injected matches what Kubernetes sets for each Service of a namespace, such as one called redis.
var injected = regexp.MustCompile(`^\w+(_SERVICE_(HOST|PORT(_\w+)?)=|_PORT=\w+://|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=)`)

// unknown returns a notice of variables that have no effect, and were probably meant for this server, with the names that may have
// been meant. It has none of their values.
func unknown(given map[string]string) (notices []string) {
	var known, found []string
	for _, v := range variables(new(Settings)) {
		known = append(known, v.name)
	}
	for name, value := range given {
		if slices.Contains(known, name) || injected.MatchString(name+"="+value) {
			continue
		}
		family := families.MatchString(name)
		switch near := nearest(name, known, family); {
		case near != "":
			found = append(found, fmt.Sprintf("%s (%s?)", name, near))
		case family:
			found = append(found, name)
		}
	}
	if found == nil {
		return nil
	}
	slices.Sort(found)
	return []string{"unknown variable, ignored: " + strings.Join(found, ", ") + "; docs/settings.md lists all variables"}
}

// nearest returns the one of the known names that another one was probably meant to be, or "".
func nearest(name string, known []string, family bool) (best string) {
	ours := strings.NewReplacer("_PASSWORD", "_AUTH", "_PASS", "_AUTH", "_USERNAME", "_AUTH", "_USER", "_AUTH",
		"_ADDRESS", "_URL", "_ADDR", "_URL", "_HOST", "_URL", "_ENDPOINT", "_URL").Replace(name)
	least := min(3, 1+len(name)/4) // short names are easily alike
	for _, k := range known {
		d := misfit(name, k)
		if family {
			d = min(d, misfit(ours, k))
			if strings.HasPrefix(k, name) {
				d = min(d, 1)
			}
		}
		if d < least {
			best, least = k, d
		}
	}
	return best
}

// misfit returns how many letters of the longer one of two names are neither of a common beginning nor of a common end: the number of
// letters that are wrong, missing or too many, where they are in one place.
func misfit(a, b string) int {
	if len(a) > len(b) {
		a, b = b, a
	}
	begin, end := 0, 0
	for begin < len(a) && a[begin] == b[begin] {
		begin++
	}
	for end < len(a)-begin && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return len(b) - begin - end
}
