package memcached

import (
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// breaker keeps calls away from a server that does not answer, or not in time.
type breaker = remote.Breaker[Error]

// newBreaker returns a closed breaker. It calls silenced when the server, which has not answered for the given time, is
// silent, and when that is over.
func newBreaker(node string, after time.Duration, changed func(node, state string), silenced func(bool)) *breaker {
	kept := func(e *Error) *Error {
		return &Error{Class: e.Class, Node: e.Node, Unsent: true, text: "calls are kept away, because of: " + e.text}
	}
	return remote.NewBreaker(node, remote.How[Error]{
		Kept:        kept,
		Changed:     changed,
		SilentAfter: after,
		Mute:        kept(&Error{Class: ClassTimeout, Node: node, text: "it does not answer"}),
		Silenced:    silenced,
	})
}
