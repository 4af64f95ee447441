package nearcache

import "slices"

// remaining is the numbers of remaining hits that a replica has yet to report, one for each hit that it holds, in
// descending order. A hit's number is what the store had left after debiting it, so no two replicas report the same one.
// The next caller gets the highest, whichever grant the hits come from, so what one caller gets never rises.
// Its runs neither overlap nor touch.
type remaining []run

// run is consecutive numbers, from low to low+n−1.
type run struct{ low, n uint64 }

// maxRuns bounds the number of runs. A new grant adds one; so does each answer of the store to a take that the lease did not cover.
// Beyond the bound the two lowest runs become one, and a number may be reported twice.
const maxRuns = 64

// add adds numbers, which must not be in l.
func (l *remaining) add(r run) {
	if r.n == 0 {
		return
	}
	if n := len(*l); n == maxRuns {
		a, b := &(*l)[n-2], (*l)[n-1]
		*a = run{b.low, a.n + b.n}
		*l = (*l)[:n-1]
	}
	i := len(*l)
	for i > 0 && (*l)[i-1].low < r.low {
		i--
	}
	*l = slices.Insert(*l, i, r)
	l.join()
}

// join makes one run of those that touch, or that overlap because hits went back to the store between the two: then the
// store has as many more left than when the higher numbers were reported.
func (l *remaining) join() {
	k, runs := 0, *l
	for _, r := range runs[1:] {
		if above := &runs[k]; r.low+r.n >= above.low {
			*above = run{r.low, above.n + r.n}
			continue
		}
		k++
		runs[k] = r
	}
	*l = runs[:k+1]
}

// takeHighest removes the highest numbers, one for each of the hits, of which there must be as many, and returns the
// lowest of them: what remains after these hits.
func (l *remaining) takeHighest(hits uint64) (after uint64) {
	gone := 0
	for i := range *l {
		r := &(*l)[i]
		if hits < r.n {
			r.n -= hits
			after = r.low + r.n
			break
		}
		hits, after = hits-r.n, r.low
		if gone++; hits == 0 {
			break
		}
	}
	*l = slices.Delete(*l, 0, gone)
	return after
}

// dropLowest removes the lowest numbers, because as many hits go back.
func (l *remaining) dropLowest(hits uint64) {
	for n := len(*l); hits > 0 && n > 0; n = len(*l) {
		r := &(*l)[n-1]
		gone := min(hits, r.n)
		r.low, r.n, hits = r.low+gone, r.n-gone, hits-gone
		if r.n == 0 {
			*l = (*l)[:n-1]
		}
	}
}

// renumber renumbers l if the store has more hits left now, low, than the lowest number says. That is so when hits were
// refunded, or tokens have come.
func (l *remaining) renumber(low uint64) {
	n := len(*l)
	if n == 0 || low <= (*l)[n-1].low {
		return
	}
	sum := uint64(0)
	for _, r := range *l {
		sum += r.n
	}
	*l = append((*l)[:0], run{low, sum})
}

// highest returns what the next one to be served will find left, 0 if nothing is held.
func (l remaining) highest() uint64 {
	if len(l) == 0 {
		return 0
	}
	return l[0].low + l[0].n
}
