package overload

import (
	"runtime"
	"sync"
	"time"
)

const (
	sparePart  = 5                   // one in so many parts of the processors' time
	pacedPart  = 16                  // the same while calls of domains below their share go first
	spareMost  = longest / sparePart // that may be saved up, of each processor
	pacedMost  = Unloaded / 8        // the same then
	spareFirst = 32.0                // nanoseconds for a byte, until it has been measured
	spareTimes = 4                   // times what a byte took at least of late that it may take, and never less than spareFirst
)

// spare bounds the time that goes into having policies answer calls that are refused unread: if that were all that is done, there would be
// none for decisions.
type spare struct {
	mu      sync.Mutex
	left    time.Duration
	at      time.Time  // when left was last added to
	spent   time.Time  // when something last was
	perByte float64    // nanoseconds that a byte takes, on average
	floor   [2]float64 // the least that one took, now and before; 0 if none did
	floored time.Time  // when that was last begun anew
}

// Work is what a call counts for that has a message of so many bytes.
func Work(size int) int { return size + each }

// Spare is time that has been set aside for so much [Work].
type Spare struct {
	Work int
	time time.Duration
}

// Spare sets time aside for so much of the work of policies that answer calls that [Gate.Full] refuses, or as much as there is time for.
// Spent must be called with it if that is anything.
func (g *Gate) Spare(work int) Spare {
	s, now := &g.spare, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	part, most := time.Duration(sparePart), spareMost
	if g.line.paced.Load() {
		part, most = pacedPart, pacedMost
	}
	s.left = min(s.left+min(now.Sub(s.at), longest)*processors()/part, most*processors())
	s.at = now
	if now.Sub(s.spent) > recent {
		s.perByte = spareFirst // what is known may be something else's, and with too much of that nothing better would ever be
	}
	work = min(work, int(float64(max(s.left, 0))/s.perByte))
	out := Spare{work, time.Duration(float64(work) * s.perByte)}
	s.left -= out.time
	return out
}

func processors() time.Duration { return time.Duration(runtime.GOMAXPROCS(0)) }

// Spent gives back what is left of it: so much was done, and took so long. That cannot have been more than a few times what it took at least
// of late: a processor has done something else meanwhile. The least may be of a message that takes next to nothing for its bytes, so up to
// spareFirst, several times what a byte takes on a processor of its own, is believed in any case.
func (g *Gate) Spent(of Spare, work int, took time.Duration) {
	s, now := &g.spare, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if work <= 0 {
		s.left += of.time
		return
	}
	each := float64(took) / float64(work)
	switch since := now.Sub(s.floored); {
	case since > 2*recent:
		s.floor, s.floored = [2]float64{each}, now
	case since > recent:
		s.floor, s.floored = [2]float64{each, s.floor[0]}, now
	}
	s.floor[0] = min(s.floor[0], each)
	least := s.floor[0]
	if s.floor[1] > 0 {
		least = min(least, s.floor[1])
	}
	each = min(each, max(spareTimes*least, spareFirst))
	s.perByte += (each - s.perByte) / averages
	s.left = max(s.left+of.time-time.Duration(float64(work)*each), -longest*processors())
	s.spent = now
}

// Behind reports whether what is read of a connection may come too late, since for so long there has always been more to read: it may have
// waited for as long, out of sight. Where callers are patient, or nothing is known of them, it does not.
func (g *Gate) Behind(always time.Duration) bool {
	patient := time.Duration(g.line.hurry.Load())
	return patient > 0 && patient < enough*3/4 && always > patient/2
}

// Drop refuses a call that is read too late, unless its domain is below its share, and reports whether it does.
func (g *Gate) Drop(seen *Seen) bool {
	if g.shares.under(seen.Domain) {
		return false
	}
	g.shares.dismissed(time.Since(g.begun), seen.Domain, seen.Size)
	return true
}
