package admin

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// MostShown is the most problems, changes, divided limits and their clients, or controls of a rule in an answer.
const MostShown = 100

// Process is the process that the API is part of: what Status, ReloadRules and Drain ask. It asks [access.Who] what of rules, problems and
// descriptors a caller may see.
type Process interface {
	// Status returns how the process is; the API adds what it knows itself, and takes out what concerns all domains together.
	Status(who *access.Who) *adminv1.StatusResponse
	// Divided returns the limits that are divided among clients that decide by themselves, of those about which want says so.
	Divided(who *access.Who, want func(domain string, entries []descriptors.Entry) bool) []*adminv1.DividedLimit
	// ReloadRules takes the rules again from where they come from, and waits for what comes of it. With dry it only says what would.
	// It returns an error that wraps [ErrNoPreview] or [ErrNoRulesCame], or that of ctx, if that is not known.
	ReloadRules(ctx context.Context, who *access.Who, dry bool) (*adminv1.ReloadRulesResponse, error)
	// Drain has the process report that it is not healthy or, with undo, no longer so for that reason. It returns [ErrStopping]
	// if it is stopping.
	Drain(undo, dry bool) (*adminv1.DrainResponse, error)
}

// Errors of a [Process].
var (
	ErrNoPreview   = errors.New("a dry run is not possible")
	ErrNoRulesCame = errors.New("no rules came")
	ErrStopping    = errors.New("the server is stopping, which cannot be undone")
)

// Problems returns the first of the problems that who may see, errors first, and how many there are. Where a domain is not known, as in a
// file that is no YAML, no caller who is limited sees what is wrong. Callers who may only look do not see what the files say.
func Problems(who *access.Who, all descriptors.Problems) (first []*adminv1.RulesProblem, total uint32) {
	all = slices.DeleteFunc(slices.Clone(all), func(p descriptors.Problem) bool { return who.Limited() && (p.Domain == "" || !who.Sees(p.Domain)) })
	if !who.Full {
		all = all.Bared() // which takes the domains out too
	}
	for _, warning := range []bool{false, true} {
		for _, p := range all {
			if p.Warning == warning && len(first) < MostShown {
				first = append(first, &adminv1.RulesProblem{
					File: p.File, Line: int32(p.Line), Column: int32(p.Column), Path: p.Path, Text: p.Text, IsWarning: warning,
				})
			}
		}
	}
	return first, uint32(len(all))
}

// Duration returns nil, for unset, if d is 0 or never over.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 || d == engine.Never {
		return nil
	}
	return durationpb.New(d)
}

// Timestamp returns nil, for unset, if t is zero.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// validate replaces what is not UTF-8 in the texts of m, which could not be sent. m has no maps.
func validate(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			for i := range v.List().Len() {
				if f.Message() != nil {
					validate(v.List().Get(i).Message())
				} else if f.Kind() == protoreflect.StringKind {
					v.List().Set(i, protoreflect.ValueOfString(valid(v.List().Get(i).String())))
				}
			}
		case f.Message() != nil:
			validate(v.Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(valid(v.String())))
		}
		return true
	})
}
