package shares

import "fmt"

func (b *Bucket) Debug() string {
	held, share, res, exp, target := 0.0, 0.0, 0.0, 0.0, 0.0
	now := b.clock.now
	st := [4]int{}
	for _, h := range b.holders {
		held += h.held(now)
		share += h.share(now)
		res += h.burst(now)
		exp += h.expected(now)
		target += h.target
		st[h.state]++
	}
	r := b.Limit.rate()
	return fmt.Sprintf("n %v left %.2f paid %.2f held %.2f share %.2f target %.2f reserved %.2f cap %.2f want %.2f granted %.2f portion %.2f demand %.2f", st, b.left/r, b.paid/r, held/r, share/r, target/r, res/r, b.cap/r, b.want/r, b.granted/r, b.portion/r, b.claim.Demand/r)
}
