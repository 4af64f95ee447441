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

// MaxShown bounds each list in an answer: problems, changes, divided limits, their clients, and controls of a rule.
const MaxShown = 100

// Process is the process that serves the API. Status, ReloadRules, and Drain call it. It filters rules, problems, and descriptors
// by [access.Who].
type Process interface {
	// Status returns the status of the process. The API completes it, and removes totals of all domains for limited callers.
	Status(who *access.Who) *adminv1.StatusResponse
	// Divided returns the limits that RLQS divides among clients and that want selects.
	Divided(who *access.Who, want func(domain string, entries []descriptors.Entry) bool) []*adminv1.DividedLimit
	// ReloadRules reloads the rules from their source and waits for the outcome. With dry it returns the outcome without using
	// the rules. Its error wraps [ErrNoPreview] or [ErrNoRulesCame], or is that of ctx.
	ReloadRules(ctx context.Context, who *access.Who, dry bool) (*adminv1.ReloadRulesResponse, error)
	// Drain makes health fail or, with undo, removes that failure. It returns [ErrStopping] if the process is stopping.
	Drain(undo, dry bool) (*adminv1.DrainResponse, error)
}

// Errors of a [Process].
var (
	ErrNoPreview   = errors.New("a dry run is not possible")
	ErrNoRulesCame = errors.New("no rules came")
	ErrStopping    = errors.New("the server is stopping, which cannot be undone")
)

// Problems returns the first problems that who may see, errors first, and their total. Problems without a domain, such as invalid
// YAML, are hidden from limited callers. Read-only callers do not see contents of files.
func Problems(who *access.Who, all descriptors.Problems) (first []*adminv1.RulesProblem, total uint32) {
	all = slices.DeleteFunc(slices.Clone(all), func(p descriptors.Problem) bool { return who.Limited() && (p.Domain == "" || !who.Sees(p.Domain)) })
	if !who.Full {
		all = all.Bared() // also removes the domains
	}
	for _, warning := range []bool{false, true} {
		for _, p := range all {
			if p.Warning == warning && len(first) < MaxShown {
				first = append(first, &adminv1.RulesProblem{
					File: p.File, Line: int32(p.Line), Column: int32(p.Column), Path: p.Path, Text: p.Text, IsWarning: warning,
				})
			}
		}
	}
	return first, uint32(len(all))
}

// Duration converts d; 0 and [engine.Never] become nil.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 || d == engine.Never {
		return nil
	}
	return durationpb.New(d)
}

// Timestamp converts t; the zero time becomes nil.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// validate makes the strings of m valid UTF-8, as protobuf requires. m must have no maps.
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
