package shares

import "fmt"

func (b *Bucket) Debug() string {
	p, pn := 0.0, 0.0
	for _, h := range b.holders {
		p += b.promised(h)
		pn += b.promisedNext(h)
	}
	return fmt.Sprintf("left %.0f paid %.1f promised %.1f next %.1f cap %.2f portion %.2f start %d ends %d now %d spent %v due %d asking %v", b.left, b.paid, p, pn, b.cap, b.portion, b.start/second, b.ends/second, b.clock.now/second, b.spent, b.due/second, b.asking)
}
