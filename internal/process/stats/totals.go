package stats

// Totals are sums over all calls since the start of the process, for a page that shows how it goes without reading
// each series.
type Totals struct {
	Calls uint64 // of the named method, and of /json

	cells [cells]uint64 // the same, by how long they took
	scale scale
}

// Totals returns the sums, of the calls of one gRPC method and of /json.
func (r *Registry) Totals(method string) Totals {
	t := Totals{scale: r.scale}
	t.cells, _ = r.overHTTP.read()
	if c := (*r.calls.Load())[method]; c != nil {
		all, _ := c.read()
		for i, n := range all {
			t.cells[i] += n
		}
	}
	for _, n := range t.cells {
		t.Calls += n
	}
	return t
}

// Within returns how many seconds a share of the calls between before and t took at most, up to 9 % more or less; 0 if there
// were none.
func (t *Totals) Within(before *Totals, share float64) float64 {
	_, to := t.scale.ends()
	left := float64(t.Calls-before.Calls) * share
	for i, n := range t.cells {
		if left -= float64(n - before.cells[i]); left <= 0 && t.Calls > before.Calls {
			return to[i] / t.scale.perSecond
		}
	}
	return 0
}
