package limiter

import "iter"

// Outcome is the result of one descriptor. It is computed once, and every output reports it.
type Outcome uint8

// The outcomes.
const (
	NoLimit     Outcome = iota // no rule with a limit matched
	Unlimited                  // the rule is unlimited
	Replaced                   // the limits of another descriptor replace those of the rule
	Skipped                    // the limits were not checked, because another descriptor is blocked or the reservation ID is invalid
	Admitted                   // within the limits, or a refund
	Rejected                   // over a limit
	Shadowed                   // over a limit that does not reject, because of shadow mode
	ChargedLate                // charged for a request that has already run; rejects nothing
	Blocked                    // rejected by a control
	Allowed                    // admitted by a control, without counting
	Failed                     // an error; there is no verdict
	outcomes

	// Undecided is the outcome of a descriptor whose limits have not been checked yet.
	Undecided = outcomes
)

// String returns the outcome as one or two words.
func (o Outcome) String() string {
	return [outcomes + 1]string{
		"no limit", "unlimited", "replaced", "skipped", "admitted", "rejected", "shadowed", "late charge", "blocked", "allowed", "failed", "undecided",
	}[o]
}

// Rejects reports whether the descriptor rejects the request.
func (o Outcome) Rejects() bool { return o == Rejected || o == Blocked }

// Outcomes yields all outcomes but [Undecided].
func Outcomes() iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		for o := range outcomes {
			if !yield(o) {
				return
			}
		}
	}
}
