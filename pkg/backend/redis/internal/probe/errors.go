package probe

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Store begins the texts of errors.
const Store remote.Store = "redis"

// The classes of error replies, beside those of package remote.
const (
	ClassReadOnly    remote.Class = "readonly"    // a replica, or a server that accepts no writes
	ClassBusy        remote.Class = "busy"        // another client's script runs for too long
	ClassLoading     remote.Class = "loading"     // the server is loading its data from disk
	ClassClusterDown remote.Class = "clusterdown" // the cluster, the master or enough replicas are missing
	ClassNoAuth      remote.Class = "noauth"      // wrong or missing password, or missing permission: for an operator to fix
	ClassNoScript    remote.Class = "noscript"    // the script was missing again after it was sent
)

// ErrBehind is the error of replies that belong to other commands.
var ErrBehind = errors.New("replies do not match commands")

// classOf returns the class of an error reply by its first word, or "" if the word has none.
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

// Classify turns an error of go-redis into one of Redis.
func Classify(node string, err error) *remote.Error {
	if reply, ok := errors.AsType[redis.Error](err); ok && !errors.Is(err, redis.Nil) {
		return OfReply(node, reply.Error())
	}
	if errors.Is(err, ErrBehind) {
		return Store.Failed(remote.Reset, node, remote.Text(err))
	}
	return Store.Wrap(node, err)
}

// ofLogin matches the replies to AUTH that begin with no word of their own: a password was sent to a server without one, it is not the
// password of a server before Redis 6, or a user was sent to such a server.
var ofLogin = regexp.MustCompile(`^ERR (AUTH |Client sent AUTH|invalid password|wrong number of arguments for 'auth')`)

// OfReply turns an error reply of a server into one of Redis.
func OfReply(node, text string) *remote.Error {
	code, _, _ := strings.Cut(text, " ")
	if forbidden.MatchString(text) {
		e := Store.Failed(ClassNoAuth, node, "NOPERM: the user lacks a permission that it needs")
		e.Code = "NOPERM"
		if name := deniedCommand(text); name != "" {
			e.Text = "NOPERM: the user may not run " + name
		} else if strings.Contains(text, "access") {
			e.Text = "NOPERM: the user may not use the key of a counter"
		}
		return e
	}
	e := Store.Failed(classOf(code), node, remote.Clean(text))
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
	// Redis 6.2 wraps the error reply to a command within a script: "ERR Error running script …: -OOM command not
	// allowed …" and, where the script goes on, "@user_script: 7: -OOM command not allowed …".
	wrapped := code == "ERR" || strings.HasPrefix(code, "@")
	for word := range strings.FieldsSeq(text) {
		if inner, ok := strings.CutPrefix(word, "-"); ok && wrapped && classOf(inner) != "" {
			e.Class, e.Code = classOf(inner), inner
			break
		}
	}
	return e
}
