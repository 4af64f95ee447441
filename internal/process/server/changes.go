package server

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// compare summarizes the changes between two sets of rules, for operators.
func compare(old, set *descriptors.Set) configwatch.Changes { //nolint:ireturn // configwatch declares the interface
	if s := rulediff.Summarize(old, set, admin.MaxShown); s != nil {
		return s
	}
	return nil
}

// changeMessage describes the changes of an update in the domains that who may see. It returns nil if there are none, or no
// update.
func changeMessage(o *configwatch.Outcome, who *access.Who) *adminv1.RulesChange {
	if o == nil {
		return nil
	}
	summary, _ := o.Changes.(*rulediff.Summary)
	first, all := summary.In(who.Sees)
	if all.Total() == 0 {
		return nil
	}
	effects := map[rulediff.Effect]adminv1.ChangeEffect{
		rulediff.Opens:  adminv1.ChangeEffect_CHANGE_EFFECT_OPENS,
		rulediff.Resets: adminv1.ChangeEffect_CHANGE_EFFECT_ANEW,
		rulediff.Raises: adminv1.ChangeEffect_CHANGE_EFFECT_RAISES,
	}
	m := &adminv1.RulesChange{Time: timestamppb.New(o.At), Summary: all.String(), Total: uint32(all.Total())}
	for i := range first {
		c := &first[i]
		m.Differences = append(m.Differences, &adminv1.RulesDifference{Path: c.Path, Text: c.InFull(), Place: c.Place, Effect: effects[c.Effect]})
	}
	return m
}
