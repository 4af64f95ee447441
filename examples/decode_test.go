package examples_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// read returns a file of this directory.
func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	testkit.Check(t, err)
	return string(raw)
}

// unpack decodes an Any into a message of the expected type.
func unpack[M proto.Message](t *testing.T, a *anypb.Any, into M) M {
	t.Helper()
	testkit.Check(t, a.UnmarshalTo(into))
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
		testkit.Check(t, err)
		object := into(head.Kind)
		if object == nil {
			t.Fatalf("a document of kind %q is not expected", head.Kind)
		}
		if err := documents.Decode(object); err != nil {
			t.Fatalf("%s: %v", head.Kind, err)
		}
	}
}
