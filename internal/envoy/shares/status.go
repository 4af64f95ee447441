package shares

// Status describes a bucket. Rates are in hits per second.
type Status struct {
	Answer   string  // current action for clients: waiting for the store, divided, allow all, deny all
	Capacity float64 // rate that all replicas together may hand out
	Part     float64 // rate that this replica may hand out
	Left     float64 // hits in the store at its last answer
	Leased   float64 // unused leased hits; negative if clients used more than the store has granted
}

// Status returns the status of b.
func (b *Bucket) Status() Status {
	answer := "waiting for the store"
	switch {
	case b.Divides():
		answer = "divided"
	case b.decided:
		answer = b.ruling.String()
	}
	return Status{Answer: answer, Capacity: b.cap, Part: b.portion, Left: max(0, b.left), Leased: b.paid}
}

// Holder describes a holder.
type Holder struct {
	ID     string
	State  string
	Weight float64
	Demand float64 // hits per second, as reported
	Share  float64 // hits per second of the latest assignment
	Held   float64 // hits per second that it may use under any assignment in force
}

// Holders returns all holders.
func (b *Bucket) Holders() []Holder {
	all, now := make([]Holder, len(b.holders)), b.clock.now
	for i, h := range b.holders {
		all[i] = Holder{h.ID, b.stateOf(h), h.Weight, h.demand.rate, h.share(now), h.held(now)}
	}
	return all
}

// stateOf returns the state of h in words. While the store does not answer, this may be the fallback.
func (b *Bucket) stateOf(h *holder) string {
	switch {
	case h.state != denied || b.failed == 0:
		return h.state.String()
	case b.fallback == Allow:
		return "allowed"
	case b.fallback == Lapse:
		return "expired"
	default:
		return "denied"
	}
}
