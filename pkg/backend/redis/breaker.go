package redis

import (
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// breaker keeps calls away from a node that does not answer, or not in time.
type breaker = remote.Breaker[Error]

// newBreaker returns a closed breaker, which opens at once if Redis is busy with a script. It calls silenced when the
// node has become silent, which it is if it has not answered for the given time.
func newBreaker(node string, after time.Duration, changed func(node, state string), silenced func()) *breaker {
	return remote.NewBreaker(node, remote.How[Error]{
		Kept:        kept,
		AtOnce:      func(e *Error) bool { return e.Class == ClassBusy },
		Changed:     changed,
		SilentAfter: after,
		Mute:        kept(&Error{Class: ClassTimeout, Node: node, text: "it does not answer"}),
		Silenced: func(silent bool) {
			if silent {
				silenced()
			}
		},
	})
}

// kept returns the error of calls that are kept away because of e.
func kept(e *Error) *Error {
	return &Error{Class: e.Class, Node: e.Node, Unsent: true, text: "calls are kept away, because of: " + e.text, code: e.code}
}
