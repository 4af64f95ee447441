package xds

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// Limits of decoding, so that a small response cannot occupy much memory.
const (
	maxMessages = 1_000_000 // descriptors, limits, and metadata values in all resources
	maxNesting  = 500       // of messages; descriptors and metadata have lower limits, whose errors contain the path
	maxText     = 512 << 10 // bytes of a text
	maxName     = 200       // bytes of a name in messages
)

// decode decodes resources. The problems include those of decoding.
func decode(all []resource) (sources []descriptors.Source, problems descriptors.Problems) {
	if len(all) > maxResources {
		return nil, descriptors.Problems{{File: "the response", Text: errTooMuch.Error()}}
	}
	s := scan{budget: maxMessages}
	for i, res := range all {
		label := res.label(i)
		if i > 0 && res.name != "" && res.name == all[i-1].name {
			problems = append(problems, descriptors.Problem{File: label, Text: "a second resource with this name: each needs a unique name", Warning: true})
		}
		source, err := res.decode(&s)
		if err != nil {
			problems = append(problems, descriptors.Problem{File: label, Text: err.Error()})
			continue
		}
		source.Name = label
		sources = append(sources, source)
	}
	return sources, problems
}

// label returns the name of the resource for messages.
func (r *resource) label(position int) string {
	name := strings.ToValidUTF8(r.name, "\uFFFD")
	switch {
	case name == "":
		return fmt.Sprintf("resource %d", position+1)
	case len(name) > maxName:
		return strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return name
}

func (r *resource) decode(s *scan) (source descriptors.Source, err error) {
	switch {
	case r.typeURL != TypeURL:
		return source, fmt.Errorf("its type is %q: want %s", r.typeURL, TypeURL)
	case len(r.value) > descriptors.MaxFileSize:
		return source, fmt.Errorf("it has %d bytes: want at most %d", len(r.value), descriptors.MaxFileSize)
	}
	var m configv1.RateLimitConfig
	if err = s.message(r.value, m.ProtoReflect().Descriptor(), 0); err != nil {
		return source, fmt.Errorf("it cannot be decoded: %w", err)
	}
	if err = proto.Unmarshal(r.value, &m); err != nil {
		return source, fmt.Errorf("it cannot be decoded: %w", err)
	}
	source.Root = convert(&m)
	source.Data, err = proto.MarshalOptions{Deterministic: true}.Marshal(&m) // deterministic, unlike r.value
	return source, err
}

// nameIn returns the name in an encoded resource, which may be invalid.
func nameIn(value []byte) (name string) {
	for len(value) > 0 {
		num, kind, n := protowire.ConsumeField(value)
		if n < 0 {
			return name
		}
		if num == nameField && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(value)
			b, _ := protowire.ConsumeBytes(value[tag:])
			name = string(b)
		}
		value = value[n:]
	}
	return name
}

// nameField is the number of RateLimitConfig.name.
const nameField = 1

var (
	errTooMany = fmt.Errorf("it has more than %d descriptors, limits and metadata values", maxMessages)
	errTooDeep = fmt.Errorf("messages are nested more than %d deep", maxNesting)
	errDamaged = errors.New("it is damaged, or not protobuf")
)

// scan validates encoded messages before they are decoded.
type scan struct{ budget int } // number of further messages

func (s *scan) message(b []byte, of protoreflect.MessageDescriptor, depth int) error {
	if s.budget--; s.budget < 0 {
		return errTooMany
	}
	if depth > maxNesting {
		return errTooDeep
	}
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errDamaged
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, kind, b); n < 0 {
			return errDamaged
		}
		field := of.Fields().ByNumber(num)
		if field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b)
			if err := s.field(value, field, depth); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}

func (s *scan) field(value []byte, field protoreflect.FieldDescriptor, depth int) error {
	switch {
	case field.Message() != nil:
		return s.message(value, field.Message(), depth+1)
	case field.Kind() != protoreflect.StringKind:
		return nil
	case len(value) > maxText:
		return fmt.Errorf("the text of %s has %d bytes: want at most %d", readable(field), len(value), maxText)
	case !utf8.Valid(value):
		return fmt.Errorf("the text of %s is not UTF-8: %.40q", readable(field), value)
	}
	return nil
}

// readable returns the name of a field without our package name.
func readable(field protoreflect.FieldDescriptor) string {
	name := string(field.FullName())
	if i := strings.IndexFunc(name, unicode.IsUpper); i > 0 {
		name = name[i:]
	}
	return name
}
