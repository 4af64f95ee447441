package shares

import "fmt"

func (b *Bucket) Debug() string {
	p, pn, m, rr, a, age := 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
	for _, h := range b.holders {
		p += b.promised(h)
		pn += b.promisedNext(h)
		m += h.full
		rr += h.raised
		a += h.hits(h.heard, b.clock.now)
		age += h.share(b.clock.now)
	}
	return fmt.Sprintf("left %.0f paid %.1f promised %.1f (M %.1f raised %.1f past %.1f rates %.1f) next %.1f cap %.2f ends %d spent %v", b.left, b.paid, p, m, rr, a, age, pn, b.cap, (b.ends-b.clock.now)/second, b.spent)
}
