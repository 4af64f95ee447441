package memcached

import "github.com/ratelimitd/ratelimitd/pkg/backend/remote"

// breaker keeps calls away from a server that does not answer, or not in time.
type breaker = remote.Breaker[Error]

func newBreaker(node string, changed func(node, state string)) *breaker {
	return remote.NewBreaker(node, remote.How[Error]{
		Kept: func(e *Error) *Error {
			return &Error{Class: e.Class, Node: e.Node, Unsent: true, text: "calls are kept away, because of: " + e.text}
		},
		Changed: changed,
	})
}
