package admission

const (
	quantum   = 16 // descriptors of a domain for each turn
	mixedFor  = 64 // rounds for which a connection that had calls of two domains counts as one with several
	extraRoom = 8  // calls for each one that may be in flight are received in a round, at most, for the sake of fairness
)

// flow is what waits of one domain. Domains have turns by deficit round robin (Shreedhar and Varghese, "Efficient Fair
// Queuing Using Deficit Round Robin", 1995): each may spend a quantum of descriptors a turn, and what it does not spend
// for want of enough it keeps until its next one.
type flow struct {
	domain  uint32
	calls   []*waiting // in the order in which they came
	deficit int        // descriptors
	begun   bool       // its turn has, so it has had its quantum
}

// at returns the newest call, or the oldest.
func (f *flow) at(newest bool) *waiting {
	if newest {
		return f.calls[len(f.calls)-1]
	}
	return f.calls[0]
}

// next removes the call whose turn is next, the newest of its domain or the oldest; nil if none waits.
func (q *queue) next(newest bool) *waiting {
	for len(q.turns) > 0 {
		f := q.turns[0]
		if !f.begun {
			f.begun = true
			f.deficit += quantum
		}
		if cost := f.at(newest).Cost; cost <= f.deficit {
			f.deficit -= cost
			w := q.take(f, newest)
			if len(f.calls) == 0 {
				q.turns = q.turns[1:]
				delete(q.flows, f.domain)
			}
			return w
		}
		f.begun = false
		q.turns = append(q.turns[1:], f)
	}
	return nil
}

// shorten removes the oldest call of the domain of which most wait.
func (q *queue) shorten() *waiting {
	longest := q.turns[0]
	for _, f := range q.turns {
		if len(f.calls) > len(longest.calls) {
			longest = f
		}
	}
	w := q.take(longest, false)
	q.tidy()
	return w
}
