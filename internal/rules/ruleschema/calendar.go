package ruleschema

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// beginsIn forbids keys of a calendar that do not apply to its unit.
func beginsIn(u descriptors.Unit) schema {
	none := schema{}
	for key, units := range map[string][]descriptors.Unit{
		rulefile.KeyMonth: {descriptors.Year}, rulefile.KeyDay: {descriptors.Month, descriptors.Year}, rulefile.KeyWeekday: {descriptors.Week},
	} {
		if !slices.Contains(units, u) {
			none[key] = false
		}
	}
	return schema{"properties": none}
}

// calendarTogether returns the constraints between calendar and other keys of a limit.
func calendarTogether() []schema {
	var (
		calendar, align = engine.ParamCalendar.String(), engine.ParamAlign.String()
		on              = has(calendar, schema{"not": schema{"enum": []any{false, nil}}})
		units           []schema
		rules           = []schema{{"if": schema{"required": []string{engine.ParamTimezone.String()}}, "then": on}}
	)
	for u := descriptors.Day; u <= descriptors.Week; u++ {
		units = append(units, unitPattern(u))
		multipliers := []any{nil, 1}
		if u == descriptors.Month {
			multipliers = append(multipliers, 2, 3, 4, 6, 12)
		}
		rules = append(rules, schema{
			"if": schema{"allOf": []schema{on, has(rulefile.KeyUnit, unitPattern(u))}},
			"then": schema{"properties": schema{
				rulefile.KeyUnitMultiplier: schema{"enum": multipliers}, calendar: beginsIn(u),
			}},
		})
	}
	return append(rules, schema{"if": on, "then": schema{"properties": schema{
		rulefile.KeyUnit: schema{"anyOf": units}, align: schema{"const": engine.ParamAlign.Words()[engine.AlignClock]},
	}}})
}

// foreverTogether returns the constraints for the unit forever.
func foreverTogether(p rulefile.Place) schema {
	keys := schema{
		rulefile.KeyAlgorithm:         schema{"const": engine.FixedWindow.String()},
		engine.ParamAlign.String():    schema{"const": engine.ParamAlign.Words()[engine.AlignClock]},
		rulefile.KeyUnitMultiplier:    schema{"enum": []any{nil, 1}},
		engine.ParamTimezone.String(): false,
	}
	if p == rulefile.InItem {
		return schema{"properties": keys}
	}
	keys[rulefile.KeyLease] = offAlone()
	keys[rulefile.KeyReserve] = schema{"type": "null"}
	keys[rulefile.KeyRLQS] = schema{"enum": []any{false, nil}}
	return schema{"properties": keys, "anyOf": []schema{
		oneOf(engine.ParamCountRefused.String(), false), oneOf(engine.ParamLateCharge.String(), true),
	}}
}
