package settings

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEveryVariableRejectsNonsense: an invalid value results in one line with the variable's name, its value, and the
// accepted values, whatever else is set.
func TestEveryVariableRejectsNonsense(t *testing.T) {
	t.Parallel()
	nonsense := map[kind][]string{
		boolean: {"maybe", "2", " true"}, integer: {"-1", "1.5", "many", "9223372036854775808"}, positive: {"0", "-1", "one"},
		seconds: {"-1", "5s", "2147483648"}, port: {"-1", "65536", "http"}, ratio: {"-0.1", "NaN", "half"},
		duration: {"10", "-1s", "soon", "876001h"}, interval: {"0s", "10", "-1s", "876001h"}, names: {",", "a,", ",a", "a,\t"},
		pairs: {"a", "a:b,c", "a:b:c"}, assignments: {"=b", "a=b, =c"}, secretPairs: {"planted", "a:b,planted"},
		address: {"9090", "a:b:c", "a:65536", "word@a:1"}, host: {"user:word@a", "word@a"}, path: {"metrics", "http://a/b"}, header: {"a b", ":status", "x:"},
	}
	for _, v := range variables(new(Settings)) {
		values := nonsense[v.kind]
		if v.kind.accepts().words != nil {
			values = []string{"nonsense", v.kind.accepts().words[0] + " "}
		}
		if values == nil && v.kind != text && v.kind != list {
			t.Errorf("this test has no nonsense for %s", v.name)
		}
		backend := v.backend
		if backend == "" || backend == shared {
			backend = redis
		}
		for _, value := range values {
			if used, _ := v.instead(value); used != value {
				continue // it is replaced
			}
			_, _, err := Parse([]string{"DISABLE_STATS=", "BACKEND_TYPE=" + backend, "MEMCACHE_HOST_PORT=a:1", v.name + "=" + value})
			want := wrong(v.name, value, v.kind.takes()).Error()
			if v.kind == secretPairs {
				want = v.name + ": must be " + v.kind.takes()
			}
			if err == nil || !slices.Contains(strings.Split(err.Error(), "\n"), want) {
				t.Errorf("%s=%q: %v, want %s", v.name, value, err, want)
			}
		}
	}
	for name, takes := range map[string]string{
		"BACKEND_TYPE": "memory, redis or memcache", "CONFIG_TYPE": "FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA",
	} {
		if _, _, err := Parse([]string{name + "=nonsense"}); err == nil || err.Error() != wrong(name, "nonsense", takes).Error() {
			t.Errorf("%s=nonsense: %v", name, err)
		}
	}
}

// other returns a value other than the default of v.
func other(v variable) string {
	switch v.kind {
	case boolean:
		if v.def == "true" {
			return "false"
		}
		return "true"
	case integer, positive, seconds, port, ratio:
		return "7"
	case duration, interval:
		return "7s"
	case pairs, secretPairs:
		return "a:b"
	case assignments:
		return "a=b"
	case address:
		return "127.0.0.1:1"
	case path:
		return "/other"
	case level:
		return "debug"
	case text, list, names, host, header, deployment, socket, keyFormat, failure, headersFormat, tlsVersion, protocol, exporter, store, source, logFormat:
	}
	return "other"
}

func TestEveryVariableDoesWhatItsRowSays(t *testing.T) {
	t.Parallel()
	for _, v := range variables(new(Settings)) {
		if slices.Contains([]string{"GRPC_SERVER_USE_TLS", "DEBUG_TLS"}, v.name) {
			continue // they depend on others
		}
		if v.kind.accepts().words != nil {
			continue // it accepts only some texts
		}
		_, notices, problems := parse(t, "USE_STATSD=false", v.name+"="+other(v))
		if problems != nil {
			t.Errorf("%s=%s: problems %q", v.name, other(v), problems)
		}
		warned := len(notices) == 1 && strings.HasPrefix(notices[0], v.name+"=")
		if want := v.to == tuning && v.of(memory); warned != want {
			t.Errorf("%s: notices %q; want it warned of: %v", v.name, notices, want)
		}
		if _, notices, problems := parse(t, "USE_STATSD=false", v.name+"="+v.def); problems != nil || notices != nil && v.name != "USE_STATSD" {
			t.Errorf("%s at its default: problems %q, notices %q", v.name, problems, notices)
		}
	}
}

// TestTableAndSettingsAgree: rows have different names and fields, each default is valid, and each field of Settings has a
// row, except for derived ones.
func TestTableAndSettingsAgree(t *testing.T) {
	t.Parallel()
	var s Settings
	names, fields := map[string]bool{}, map[any]bool{}
	for _, v := range variables(&s) {
		if _, inert := v.to.(state); names[v.name] || fields[v.to] && !inert {
			t.Errorf("%s, or its field, stands in the table twice", v.name)
		}
		names[v.name], fields[v.to] = true, true
		if v.def != "" && v.kind.check(v.def) != nil {
			t.Errorf("%s: its own default %q is not %s", v.name, v.def, v.kind.takes())
		}
	}
	var without []string
	eachField(reflect.ValueOf(&s).Elem(), func(name string, at any) {
		if !fields[at] {
			without = append(without, name)
		}
	})
	if d := cmp.Diff([]string{"Assumed", "Mogrifiers"}, without); d != "" {
		t.Errorf("fields without a row (-want +got):\n%s", d)
	}
}

// eachField calls f for the fields of v and of the structs in it, each with a pointer to it.
func eachField(v reflect.Value, f func(name string, at any)) {
	for field, value := range v.Fields() {
		if value.Kind() == reflect.Struct {
			eachField(value, f)
		} else {
			f(field.Name, value.Addr().Interface())
		}
	}
}
