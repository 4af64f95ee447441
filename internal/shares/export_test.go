package shares

import "fmt"

func (b *Bucket) Debug() string {
	held, share, res, exp := 0.0, 0.0, 0.0, 0.0
	now := b.clock.now
	for _, h := range b.holders {
		held += h.held(now)
		share += h.share(now)
		res += h.burst(now)
		exp += h.expected(now)
	}
	r := b.Limit.rate()
	return fmt.Sprintf("left %.2f paid %.2f held %.2f share %.2f reserved %.2f expected %.2f cap %.2f", b.left/r, b.paid/r, held/r, share/r, res/r, exp/r, b.cap/r)
}
