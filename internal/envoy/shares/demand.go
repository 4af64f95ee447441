package shares

import "math"

// How a change of demand is told from noise. Requests arrive about as a Poisson process does: n of them deviate by √n.
const (
	noiseDeviations = 3   // standard deviations that are noise
	noisePart       = 0.1 // of the demand, which is noise as well
	smoothing       = 0.3 // of the difference that one noisy report adds
)

// demand follows how many requests a second a holder receives, whether they are allowed or not. The zero demand is not
// known. It is a change detector: a difference that noise explains moves it slowly, and any other one replaces it.
type demand struct {
	rate  float64 // requests a second
	known bool
}

// observe returns d after a report of x requests a second over a span of seconds, and whether they are a jump.
func (d demand) observe(x, span float64) (next demand, jump bool) {
	noise := noiseDeviations*math.Sqrt(max(d.rate, x)/span) + noisePart*d.rate
	if !d.known || math.Abs(x-d.rate) > noise {
		return demand{rate: x, known: true}, true
	}
	d.rate += smoothing * (x - d.rate)
	return d, false
}

// saturated reports whether a client could have used more than it had.
func saturated(u Usage) bool { return float64(u.Denied) > 0.02*float64(u.Allowed+u.Denied) }
