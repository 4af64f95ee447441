package stats

// maxTimings is the maximum number of samples for the response times of one method between two flushes, whatever the
// load. It is enough for the 99.9th percentile.
const maxTimings = 1000

// spread picks at most most of the calls that are counted in cells, which are ordered by duration, and yields the cell
// of each with the number of calls that it represents. The picks are spread evenly over the calls, ordered by duration,
// and all but two represent the same number of calls. So the number of calls is exact, and percentiles are right even
// with servers that ignore, when they sort samples, how many calls a sample represents. The longest call is always
// picked, and represents only itself.
func spread(cell []uint64, most uint64) func(yield func(i int, n uint64) bool) {
	return func(yield func(i int, n uint64) bool) {
		total, last := uint64(0), 0
		for i, n := range cell {
			total += n
			if n > 0 {
				last = i
			}
		}
		if total == 0 {
			return
		}
		total-- // the longest is yielded at the end
		each := max(1, (total+most-2)/(most-1))
		i, passed := 0, uint64(0) // passed is the number of calls in the cells before i
		for done := uint64(0); done < total; {
			n := min(each, total-done)
			for passed+cell[i] <= done+n/2 {
				passed += cell[i]
				i++
			}
			if !yield(i, n) {
				return
			}
			done += n
		}
		yield(last, 1)
	}
}
