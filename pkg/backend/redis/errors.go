package redis

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// store is the prefix of error texts.
const store remote.Store = "redis"

// Classes of error replies in addition to those of package remote.
const (
	ClassReadOnly    remote.Class = "readonly"    // a replica, or a server that accepts no writes
	ClassBusy        remote.Class = "busy"        // another client's script takes too long
	ClassLoading     remote.Class = "loading"     // the server is loading its data from disk
	ClassClusterDown remote.Class = "clusterdown" // the cluster, the master or enough replicas are unavailable
	ClassNoAuth      remote.Class = "noauth"      // wrong or missing password, or missing permission; needs an operator
	ClassNoScript    remote.Class = "noscript"    // the script was missing again after it was sent
)

// errBehind is the error of replies that belong to other commands.
var errBehind = errors.New("replies do not match commands")

// classOf returns the class of an error reply by its first word, or "" if the word is unknown.
func classOf(code string) remote.Class {
	switch code {
	case "READONLY", "MISCONF":
		return ClassReadOnly
	case "OOM":
		return remote.OOM
	case "BUSY", "UNKILLABLE":
		return ClassBusy
	case "LOADING":
		return ClassLoading
	case "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN":
		return ClassClusterDown
	case "NOAUTH", "WRONGPASS", "NOPERM":
		return ClassNoAuth
	case "NOSCRIPT":
		return ClassNoScript
	}
	return ""
}

// classify converts an error of go-redis.
func classify(node string, err error) *remote.Error {
	if reply, ok := errors.AsType[redis.Error](err); ok && !errors.Is(err, redis.Nil) {
		return ofReply(node, reply.Error())
	}
	if errors.Is(err, errBehind) {
		return store.Failed(remote.Reset, node, remote.Text(err))
	}
	return store.Wrap(node, err)
}

// ofLogin matches replies to AUTH without a specific code: a password was sent to a server without one, the password of a server before
// Redis 6 is wrong, or a user was sent to such a server.
var ofLogin = regexp.MustCompile(`^ERR (AUTH |Client sent AUTH|invalid password|wrong number of arguments for 'auth')`)

// deniedKeys is the text of an error for keys that the user may not use.
const deniedKeys = "NOPERM: the user may not use the keys of counters"

// forbidden matches replies about missing permissions.
var forbidden = regexp.MustCompile(`^NOPERM |The user executing the script|ACL failure in script`)

// ofReply converts an error reply of a server.
func ofReply(node, text string) *remote.Error {
	code, _, _ := strings.Cut(text, " ")
	if forbidden.MatchString(text) {
		e := store.Failed(ClassNoAuth, node, "NOPERM: the user lacks a permission")
		if e.Code = "NOPERM"; strings.Contains(text, "access") {
			e.Text = deniedKeys
		}
		return e
	}
	e := store.Failed(classOf(code), node, remote.Clean(text))
	e.Code = code
	if e.Class != "" {
		return e
	}
	e.Class = remote.Other
	switch {
	case ofLogin.MatchString(text):
		e.Class, e.Code = ClassNoAuth, "WRONGPASS"
		return e
	case strings.HasPrefix(text, "ERR max number of clients"):
		e.Class = remote.Refused
		return e
	case strings.HasPrefix(text, "ERR This instance has cluster support disabled"):
		e.Text = "the server there is not part of a cluster: REDIS_TYPE, or REDIS_PERSECOND_TYPE if it is for limits per second, must be single"
		return e
	}
	// Redis 6.2 wraps the error reply to a command in a script: "ERR Error running script …: -OOM command not allowed …" and, if the
	// script continues, "@user_script: 7: -OOM command not allowed …".
	wrapped := code == "ERR" || strings.HasPrefix(code, "@")
	for word := range strings.FieldsSeq(text) {
		if inner, ok := strings.CutPrefix(word, "-"); ok && wrapped && classOf(inner) != "" {
			e.Class, e.Code = classOf(inner), inner
			break
		}
	}
	return e
}

// trips reports whether e is a failure of the node as a whole rather than of one operation.
func trips(e *remote.Error) bool {
	switch e.Class {
	case remote.Timeout, remote.Refused, remote.Reset, ClassReadOnly, remote.OOM, ClassBusy, ClassLoading, ClassClusterDown:
		return e.Code != "TRYAGAIN"
	case ClassNoAuth, ClassNoScript, remote.Overload, remote.Other:
	}
	return false
}

// command is a go-redis command that go-redis never retries.
type command struct{ *redis.Cmd }

// NoRetry keeps go-redis from resending commands that may have counted. A cluster client then only follows MOVED and ASK.
func (c *command) NoRetry() bool { return true }

// newCommand returns a command.
func newCommand(args ...any) *command { return &command{redis.NewCmd(context.Background(), args...)} }

// Reset prepares c for another use, after its arguments were overwritten.
func (c *command) Reset() {
	c.SetErr(nil)
	c.SetVal(nil)
}
