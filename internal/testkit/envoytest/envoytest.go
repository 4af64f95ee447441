// Package envoytest parses Envoy's configuration as strictly as Envoy does, for tests of examples and documents. tools/e2e runs the same
// with a real Envoy.
package envoytest

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"gopkg.in/yaml.v3"
)

// Decode decodes YAML into m as Envoy does, rejecting unknown fields, and applies Envoy's validation rules to m and to
// every message in it. The types of messages in an Any must be imported.
func Decode(text string, m proto.Message) error {
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return err
	}
	return DecodeTree(tree, m)
}

// DecodeTree is like Decode, for parsed YAML.
func DecodeTree(tree any, m proto.Message) error {
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(asJSON, m); err != nil {
		return err
	}
	return validate(m)
}

// validate calls ValidateAll of m and of every message in it, including messages in an Any, which ValidateAll of m omits.
func validate(m proto.Message) error {
	var all []error
	err := protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		msg, ok := p.Index(-1).Value.Interface().(protoreflect.Message)
		if !ok {
			return nil
		}
		if v, ok := msg.Interface().(interface{ ValidateAll() error }); ok {
			if err := v.ValidateAll(); err != nil {
				all = append(all, fmt.Errorf("%s: %w", p.Path[1:], err))
			}
		}
		return nil
	})
	return errors.Join(append(all, err)...)
}
