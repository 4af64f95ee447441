package main

import (
	"errors"
	"fmt"
	"io"
)

// worse is a row with an increased cost.
type worse struct {
	row     string
	figure  figure
	was, is float64
}

// tolerance is the accepted factor of an increase.
const tolerance = 1.2

// compare returns increased costs by medians of ratios. It compares rows that were measured both times; figures is
// their number of figures.
func compare(before, now results) (all []worse, figures int) {
	for _, r := range rows() {
		for _, f := range compared(r) {
			was, is := median(before.Rows[r.name].values(f)), median(now.Rows[r.name].values(f))
			if was > 0 && is > 0 {
				figures++
			}
			if is > tolerance*was && is > r.bears(f) { // false with NaN, a missing value
				all = append(all, worse{r.name, f, was, is})
			}
		}
	}
	return all, figures
}

// compared returns the figures by which a row is judged. If nearly no request calls Redis, costs in Redis are noise.
func compared(r row) []figure {
	switch {
	case r.part == many:
		all := []figure{toFew}
		for _, g := range r.goals {
			if g.figure != toFew {
				all = append(all, g.figure)
			}
		}
		return all
	case r.part != costs && r.part != connections:
		return nil
	case r.store == memory || r.scripts > 0 || r.second > 0:
		return []figure{toIdle, toPeer}
	default:
		return []figure{toIdle, toPeer, redisToPair, redisToPeer}
	}
}

// bears returns the value up to which a figure is always acceptable. For times it is the goal, because they depend on the
// machine; otherwise it is 0.
func (r row) bears(f figure) float64 {
	for _, g := range r.goals {
		if g.figure == f && (f == loading || f == pause) {
			return g.most
		}
	}
	return 0
}

// report prints increased costs, and returns an error if there are any.
func report(w io.Writer, all []worse, figures int) error {
	for _, x := range all {
		fmt.Fprintf(w, "%s: %s was %.2f, and is %.2f: %.0f %% more\n", x.row, x.figure, x.was, x.is, 100*(x.is/x.was-1))
	}
	if len(all) > 0 {
		return fmt.Errorf("%d figures are more than 20 %% worse than those in results.json; measure again before you believe it", len(all))
	}
	if figures == 0 {
		return errors.New("nothing was compared: results.json has none of these rows")
	}
	fmt.Fprintf(w, "none of %d figures is more than 20 %% worse\n", figures)
	return nil
}
