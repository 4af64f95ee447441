package nearcache

// remaining is the numbers of remaining hits that a replica has yet to report, one for each hit that it holds, in
// descending order. A hit's number is what the store had left after debiting it, so no two replicas report the same one.
// Whoever is served next gets the highest, whichever grant the hits come from, so what one caller gets never rises.
type remaining struct {
	runs [maxRuns]run // descending; they neither overlap nor touch
	n    int          // of runs
}

// run is consecutive numbers, from low to low+n−1.
type run struct{ low, n uint64 }

// maxRuns is how many runs are kept apart: there are two grants, and a few more only after an answer of the store
// came between them. Beyond that the two lowest become one, and a number may be reported twice.
const maxRuns = 8

// add adds numbers, which must not be in l.
func (l *remaining) add(r run) {
	if r.n == 0 {
		return
	}
	if l.n == maxRuns {
		a, b := &l.runs[maxRuns-2], l.runs[maxRuns-1]
		*a = run{b.low, a.n + b.n}
		l.n--
	}
	i := l.n
	for ; i > 0 && l.runs[i-1].low < r.low; i-- {
		l.runs[i] = l.runs[i-1]
	}
	l.runs[i] = r
	l.n++
	l.join()
}

// join makes one run of those that touch, or that overlap because hits went back to the store between the two: then the
// store has as many more left than when the higher numbers were reported.
func (l *remaining) join() {
	k := 0
	for _, r := range l.runs[1:l.n] {
		if above := &l.runs[k]; r.low+r.n >= above.low {
			*above = run{r.low, above.n + r.n}
			continue
		}
		k++
		l.runs[k] = r
	}
	l.n = k + 1
}

// takeHighest removes the highest numbers, one for each of the hits, of which there must be as many, and returns the
// lowest of them: what remains after these hits.
func (l *remaining) takeHighest(hits uint64) (after uint64) {
	for l.n > 0 {
		r := &l.runs[0]
		if hits < r.n {
			r.n -= hits
			return r.low + r.n
		}
		hits, after = hits-r.n, r.low
		copy(l.runs[:], l.runs[1:l.n])
		if l.n--; hits == 0 {
			break
		}
	}
	return after
}

// dropLowest removes the lowest numbers, because as many hits go back.
func (l *remaining) dropLowest(hits uint64) {
	for hits > 0 && l.n > 0 {
		r := &l.runs[l.n-1]
		gone := min(hits, r.n)
		r.low, r.n, hits = r.low+gone, r.n-gone, hits-gone
		if r.n == 0 {
			l.n--
		}
	}
}

// renumber renumbers l if the store has more hits left now, low, than the lowest number says. That is so when hits were
// given back, or tokens have come.
func (l *remaining) renumber(low uint64) {
	if l.n == 0 || low <= l.runs[l.n-1].low {
		return
	}
	sum := uint64(0)
	for _, r := range l.runs[:l.n] {
		sum += r.n
	}
	l.runs[0], l.n = run{low, sum}, 1
}

// highest returns what the next one to be served will find left, 0 if nothing is held.
func (l *remaining) highest() uint64 {
	if l.n == 0 {
		return 0
	}
	return l.runs[0].low + l.runs[0].n
}
