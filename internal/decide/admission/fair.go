package admission

const (
	quantum   = 16 // descriptors of a domain per turn
	mixedFor  = 64 // rounds for which a connection counts as mixed after calls of two domains
	extraRoom = 8  // for fairness, a round receives at most this many calls for each one that may be in flight
)

// flow holds the waiting calls of one domain. Domains take turns by deficit round robin (Shreedhar and Varghese, "Efficient Fair Queuing
// Using Deficit Round Robin", 1995): each turn adds a quantum of descriptors, and a flow keeps the rest of it if its next call costs
// more.
type flow struct {
	domain  uint32
	calls   []*waiting // in order of arrival
	deficit int        // descriptors
	begun   bool       // its turn has begun, so the quantum has been added
}

// at returns the newest or the oldest call.
func (f *flow) at(newest bool) *waiting {
	if newest {
		return f.calls[len(f.calls)-1]
	}
	return f.calls[0]
}

// next removes the next call, the newest or the oldest of its domain; nil if none waits.
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

// shorten removes the oldest call of the domain with the most waiting calls.
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
