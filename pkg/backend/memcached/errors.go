package memcached

import (
	"errors"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// store is the prefix of error texts.
const store remote.Store = "memcached"

// Errors of ops that are never sent, regardless of the servers' state.
var (
	errFixedOnly = store.Unsent(remote.Other, "", "memcached keeps one fixed_window per descriptor, which begins with the clock and "+
		"counts rejected hits; other algorithms, rate_limits and penalties need Redis")
	errWhole  = store.Unsent(remote.Other, "", "the reference's keys only work for windows of whole seconds")
	errNoName = store.Unsent(remote.Other, "", "the reference's keys need the name of the counter, which is missing")
	errLate   = store.Late()
)

// responseLine is gomemcache's prefix of a reply that is not memcached's.
const responseLine = "memcache: unexpected response line"

// classify converts an error of gomemcache.
func classify(node string, err error) *remote.Error {
	if e, ok := errors.AsType[*remote.Error](err); ok {
		return e
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "SERVER_ERROR out of memory"):
		return store.Failed(remote.OOM, node, "there is no memory left for a new counter")
	case strings.Contains(text, "Too many open connections"):
		return store.Unsent(remote.Refused, node, "the server accepts no more connections (its -c)")
	case strings.Contains(text, "unauthenticated"):
		return store.Failed(remote.Other, node, "the server requires a login, which is not supported: set MEMCACHE_HOST_PORT to a server without one (no -Y, no -S)")
	case strings.Contains(text, "non-numeric"), errors.Is(err, errNumber):
		return store.Failed(remote.Other, node, "a counter is not a number")
	case strings.HasPrefix(text, responseLine):
		return store.Failed(remote.Other, node, "the server there is not memcached")
	}
	e := store.Wrap(node, err)
	if number, ok := errors.AsType[*strconv.NumError](err); ok { // gomemcache parses any reply to incr and decr as a number
		e.Text = "the server's reply is not a memcached reply"
		if rest, found := strings.CutPrefix(strings.TrimSpace(number.Num), "SERVER_ERROR "); found {
			e.Text = remote.Clean(rest)
		}
	}
	return e
}

// trips reports whether e is a failure of the server rather than of one operation.
func trips(e *remote.Error) bool { return e.Class != remote.Other }
