package nearcache

import (
	"reflect"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestRuleHashHasEveryField checks that the hash of a rule depends on every field of its limits and of its penalty, including fields
// added later.
func TestRuleHashHasEveryField(t *testing.T) {
	hash := func(l engine.Limit, p engine.Penalty) uint32 {
		return ruleHash(&backend.Op{Limits: engine.Limits{l}, Penalty: &p})
	}
	seen := map[uint32]string{hash(engine.Limit{}, engine.Penalty{}): "no field"}
	add := func(field string, h uint32) {
		if other, taken := seen[h]; taken {
			t.Errorf("rules that differ in %s have the hash of those that differ in %s", field, other)
		}
		seen[h] = field
	}
	for f := range reflect.TypeFor[engine.Limit]().Fields() {
		if f.IsExported() {
			var l engine.Limit
			change(reflect.ValueOf(&l).Elem().FieldByIndex(f.Index))
			add("Limit."+f.Name, hash(l, engine.Penalty{}))
		}
	}
	for f := range reflect.TypeFor[engine.Penalty]().Fields() {
		var p engine.Penalty
		change(reflect.ValueOf(&p).Elem().FieldByIndex(f.Index))
		add("Penalty."+f.Name, hash(engine.Limit{}, p))
	}
}

// change sets a zero field to another value.
func change(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[*engine.Calendar]():
		v.Set(reflect.ValueOf(engine.NewZone(time.UTC).Calendar(engine.CalendarDay, 1)))
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1)
	default:
		v.SetUint(1)
	}
}
