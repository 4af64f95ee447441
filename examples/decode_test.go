package examples_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"gopkg.in/yaml.v3"
)

// read returns a file of this directory.
func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// decodeEnvoy decodes YAML into m as Envoy does, rejecting unknown fields, and applies Envoy's validation rules to m
// and to every message in it.
func decodeEnvoy(text string, m proto.Message) error {
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return err
	}
	return decodeTree(tree, m)
}

// decodeTree is like decodeEnvoy, for YAML that has been parsed.
func decodeTree(tree any, m proto.Message) error {
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(asJSON, m); err != nil {
		return err
	}
	return validate(m)
}

// validate calls ValidateAll of m and of every message below it. That includes messages in an Any, which ValidateAll
// does not reach by itself.
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

// unpack decodes an Any into a message of the expected type.
func unpack[M proto.Message](t *testing.T, a *anypb.Any, into M) M {
	t.Helper()
	if err := a.UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
	return into
}

// decodeStrict decodes each document of a YAML file into what into returns for it, rejecting unknown keys.
func decodeStrict(t *testing.T, text string, into func(kind string) any) {
	t.Helper()
	kinds := yaml.NewDecoder(strings.NewReader(text))
	documents := yaml.NewDecoder(strings.NewReader(text))
	documents.KnownFields(true)
	for {
		var head struct{ Kind string }
		err := kinds.Decode(&head)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		object := into(head.Kind)
		if object == nil {
			t.Fatalf("a document of kind %q is not expected", head.Kind)
		}
		if err := documents.Decode(object); err != nil {
			t.Fatalf("%s: %v", head.Kind, err)
		}
	}
}
