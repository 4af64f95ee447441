package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// families matches prefixes of names that only this server and the reference use. Other names may belong to other programs,
// and are reported only if they resemble a variable's.
var families = regexp.MustCompile(`^(REDIS|MEMCACHE|RUNTIME|LIMIT|XDS|CONFIG_GRPC_XDS|NEAR_CACHE|TRACING)_`)

// injected matches the variables that Kubernetes sets for each Service of a namespace, such as one named redis.
var injected = regexp.MustCompile(`^\w+(_SERVICE_(HOST|PORT(_\w+)?)=|_PORT=\w+://|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=)`)

// unknown returns a notice about unknown variables that were probably meant for this server, with suggestions. It contains no
// values.
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

// nearest returns the known name that name was probably meant to be, or "".
func nearest(name string, known []string, family bool) (best string) {
	ours := strings.NewReplacer("_PASSWORD", "_AUTH", "_PASS", "_AUTH", "_USERNAME", "_AUTH", "_USER", "_AUTH",
		"_ADDRESS", "_URL", "_ADDR", "_URL", "_HOST", "_URL", "_ENDPOINT", "_URL").Replace(name)
	least := min(3, 1+len(name)/4) // short names are easily similar
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

// misfit returns the length of the longer name without the common prefix and suffix: the number of wrong, missing, or excess letters
// if they are adjacent.
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
