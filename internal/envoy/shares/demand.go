package shares

import "math"

// Thresholds that separate changes of demand from noise. Requests arrive approximately as a Poisson process: n of them deviate by √n.
const (
	noiseDeviations = 3   // standard deviations that count as noise
	noisePart       = 0.1 // part of the demand that counts as noise
	smoothing       = 0.3 // weight of a noisy report
)

// demand estimates the requests per second of a holder, allowed or not. The zero demand is unknown. It is a change detector: a difference
// within the noise moves the estimate slowly, and any other one replaces it.
type demand struct {
	rate  float64 // requests per second
	known bool
}

// observe returns d after a report of x requests per second over span seconds, and whether the change is a jump.
func (d demand) observe(x, span float64) (next demand, jump bool) {
	noise := noiseDeviations*math.Sqrt(max(d.rate, x)/span) + noisePart*d.rate
	if !d.known || math.Abs(x-d.rate) > noise {
		return demand{rate: x, known: true}, true
	}
	d.rate += smoothing * (x - d.rate)
	return d, false
}

// saturated reports whether a client could have used more than its share.
func saturated(u Usage) bool { return float64(u.Denied) > 0.02*float64(u.Allowed+u.Denied) }
