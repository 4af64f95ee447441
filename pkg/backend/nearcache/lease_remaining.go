package nearcache

import "slices"

// remaining lists the numbers of remaining hits that a replica will report, one for each hit that it holds, in descending order. A hit's
// number is the number of hits that the store had left after debiting it, so no two replicas report the same number. The next caller gets
// the highest number, whichever grant its hits come from, so the numbers that one caller gets never rise. The runs neither overlap nor
// touch.
type remaining []run

// run represents consecutive numbers, from low to low+n−1.
type run struct{ low, n uint64 }

// maxRuns bounds the number of runs. A new grant adds a run; so does each answer of the store to a take that the lease did not cover.
// Beyond the bound, the two lowest runs are merged, and a number may be reported twice.
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

// join merges runs that touch or overlap. They overlap if hits were refunded to the store between the two, so that more are left than the
// higher numbers assume.
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

// takeHighest removes the highest numbers, one for each of hits; l must contain as many. It returns the lowest removed number, which is
// the number of hits left after these hits.
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

// dropLowest removes the lowest numbers, because as many hits are refunded.
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

// renumber renumbers l from low if the store now has more hits left, low, than the lowest number, because hits were refunded or tokens
// arrived.
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

// highest returns the number of hits that the next caller will find left, or 0 if none are held.
func (l remaining) highest() uint64 {
	if len(l) == 0 {
		return 0
	}
	return l[0].low + l[0].n
}
