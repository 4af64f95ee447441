package server

import (
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// keptChanges is the most changes of an update that are kept.
const keptChanges = 100

// changes implements [configwatch.Changes] and [admin.Changes].
type changes struct{ *rulediff.Summary }

func compare(old, set *descriptors.Set) configwatch.Changes { //nolint:ireturn // it is the consumer's own
	if s := rulediff.Summarize(old, set, keptChanges); s != nil {
		return changes{s}
	}
	return nil
}

// In implements [admin.Changes].
func (c changes) In(sees func(domain string) bool) (first []admin.Change, total int, summary string) {
	effects := map[rulediff.Effect]adminv1.ChangeEffect{
		rulediff.Opens:  adminv1.ChangeEffect_CHANGE_EFFECT_OPENS,
		rulediff.Resets: adminv1.ChangeEffect_CHANGE_EFFECT_ANEW,
		rulediff.Raises: adminv1.ChangeEffect_CHANGE_EFFECT_RAISES,
	}
	some, all := c.Summary.In(sees)
	for i := range some {
		d := &some[i]
		first = append(first, admin.Change{Path: d.Path, Text: d.InFull(), Place: d.Place, Effect: effects[d.Effect]})
	}
	return first, all.Total(), all.String()
}
