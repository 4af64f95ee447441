package descriptors_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// TestNumbersKeepTheBoundsOfTheirRows: a number beyond the bounds of its row in the grammar is an error. It skips keys of limits, whose
// bounds depend on the algorithm.
func TestNumbersKeepTheBoundsOfTheirRows(t *testing.T) {
	t.Parallel()
	rules := map[rulefile.Place]string{
		rulefile.InPenalty:  "rate_limit: {unit: day, requests_per_unit: 9, penalty: {for: 5m, %s}}",
		rulefile.InReserve:  "rate_limit: {unit: day, requests_per_unit: 9, reserve: {estimate: 5, %s}}",
		rulefile.InEstimate: "rate_limit: {unit: day, requests_per_unit: 9, reserve: {estimate: {start: 1, min: 1, max: 1, %s}}}",
		rulefile.InCalendar: "rate_limit: {unit: year, requests_per_unit: 9, calendar: {%s}}",
	}
	for _, k := range rulefile.Keywords() {
		if k.Kind != rulefile.KindNumber || k.Where&rulefile.InItem != 0 {
			continue
		}
		rule := rules[k.Where]
		if rule == "" {
			t.Errorf("%s is in a place that this test does not know", k.Name)
			continue
		}
		if k.Name == rulefile.KeyWeekday {
			rule = strings.Replace(rule, "year", "week", 1)
		}
		beyond := []uint64{k.Max + 1}
		if k.Min > 0 {
			beyond = append(beyond, k.Min-1)
		}
		for _, n := range beyond {
			_, _, err := load(fmt.Appendf(nil, "domain: shop\ndescriptors:\n  - {key: a, "+rule+"}\n", fmt.Sprintf("%s: %d", k.Name, n)))
			want := fmt.Sprintf("%s %d", k.Name, n)
			if n > math.MaxUint32 {
				want = "into " + k.Name
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %d: %v", k.Name, n, err)
			}
		}
	}
}
