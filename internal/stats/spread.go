package stats

// maxTimings is how many samples tell the response times of one method between two flushes, whatever the load. It is
// enough for the 99.9th percentile.
const maxTimings = 1000

// spread picks at most most of the calls that are counted in cells, which are in order of their length, and yields the
// cell of each with how many calls it stands for. The picks are spread evenly over the calls in the order of their
// length, and all but two stand for the same number of calls. So the number of calls comes out exactly, and the
// percentiles come out right also with servers that ignore how many calls a sample stands for when they sort samples.
// The longest call is always picked, for itself.
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
		total-- // the longest
		each := max(1, (total+most-2)/(most-1))
		i, passed := 0, uint64(0) // passed is how many calls are in the cells before i
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
