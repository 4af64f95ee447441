package xds

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// Name parts of fields that hold a key's map, next to a field for the key's other values.
const (
	mapPrefix = "learned_"
	mapSuffix = "_begin"
)

// converter converts messages to the nodes of equivalent rule files, whose keys are the names of fields. It validates nothing.
type converter struct {
	keys map[protoreflect.Name]*yaml.Node // by name, shared by all maps
}

// convert returns the root node of a file.
func convert(m *configv1.RateLimitConfig) *yaml.Node {
	c := converter{keys: map[protoreflect.Name]*yaml.Node{}}
	return c.message(m.ProtoReflect())
}

// message returns a map of the set fields of m, and of the fields that are required in files.
func (c *converter) message(m protoreflect.Message) *yaml.Node {
	n := rulefile.Map()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if value := c.field(m, f); value != nil {
			key := c.keys[f.Name()]
			if key == nil {
				key = rulefile.Value(strings.TrimSuffix(strings.TrimPrefix(string(f.Name()), mapPrefix), mapSuffix))
				c.keys[f.Name()] = key
			}
			n.Content = append(n.Content, key, value)
		}
	}
	return n
}

// field returns the value of a field, or nil if a file would omit it.
func (c *converter) field(m protoreflect.Message, f protoreflect.FieldDescriptor) *yaml.Node {
	switch of := m.Interface().(type) {
	case *configv1.RateLimitConfig:
		if f.Number() == nameField {
			return nil
		}
	case *configv1.RateLimitPolicy:
		if f.Kind() == protoreflect.EnumKind {
			return unit(of)
		}
		if begin := m.Descriptor().Fields().ByName(f.Name() + mapSuffix); begin != nil && m.Has(begin) {
			return nil
		}
	case *configv1.RateLimitDescriptor:
		if f.IsMap() && len(of.GetPlans()) > 0 {
			return c.plans(of.GetPlans())
		}
	}
	v := m.Get(f)
	switch required := f.Name() == rulefile.KeyDomain || f.Name() == rulefile.KeyRequestsPerUnit; {
	case !m.Has(f) && !required:
		return nil
	case f.IsList():
		n := rulefile.List()
		for i := range v.List().Len() {
			n.Content = append(n.Content, c.value(v.List().Get(i)))
		}
		return n
	}
	return c.value(v)
}

func (c *converter) value(v protoreflect.Value) *yaml.Node {
	m, ok := v.Interface().(protoreflect.Message)
	if !ok {
		return rulefile.Value(v.Interface())
	}
	if metadata, ok := m.Interface().(*structpb.Struct); ok {
		return ofStruct(metadata)
	}
	return c.message(m)
}

// plans returns a map of plans. A plan is a limit or a list of limits. An invalid plan with both is left as a message.
func (c *converter) plans(all map[string]*configv1.Plan) *yaml.Node {
	n := rulefile.Map()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		plan := c.message(all[name].ProtoReflect())
		switch len(plan.Content) {
		case 0:
			plan = rulefile.List()
		case 2:
			plan = plan.Content[1]
		}
		n.Content = append(n.Content, rulefile.Value(name), plan)
	}
	return n
}

// unit returns the name of a unit. An unknown unit becomes an invalid name.
func unit(m *configv1.RateLimitPolicy) *yaml.Node {
	switch u := m.GetUnit(); {
	case u == configv1.RateLimitUnit_RATE_LIMIT_UNIT_UNSPECIFIED && m.GetUnlimited():
		return nil
	case u < 0 || int(u) > int(descriptors.Forever):
		return rulefile.Value(strconv.Itoa(int(u)))
	default:
		return rulefile.Value(descriptors.Unit(u).String())
	}
}

func ofStruct(m *structpb.Struct) *yaml.Node {
	n := rulefile.Map()
	for _, k := range slices.Sorted(maps.Keys(m.GetFields())) {
		n.Content = append(n.Content, rulefile.Value(k), ofValue(m.GetFields()[k]))
	}
	return n
}

// ofValue converts a value. Unlike [structpb.Value.AsInterface], it keeps numbers that JSON lacks.
func ofValue(m *structpb.Value) *yaml.Node {
	switch v := m.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return rulefile.Value(v.NumberValue)
	case *structpb.Value_StructValue:
		return ofStruct(v.StructValue)
	case *structpb.Value_ListValue:
		n := rulefile.List()
		for _, e := range v.ListValue.GetValues() {
			n.Content = append(n.Content, ofValue(e))
		}
		return n
	}
	return rulefile.Value(m.AsInterface())
}
