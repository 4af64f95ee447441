package redis

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Class is a kind of error. There are few, so that it can be a label of metrics.
type Class = remote.Class

// The classes of errors.
const (
	ClassTimeout           = remote.Timeout // no answer in time; hits may have been counted
	ClassRefused           = remote.Refused // no connection; nothing was counted
	ClassReset             = remote.Reset   // the connection broke; hits may have been counted
	ClassReadOnly    Class = "readonly"     // a replica, or a server that refuses writes
	ClassOOM         Class = "oom"          // no memory left
	ClassBusy        Class = "busy"         // another client's script runs for too long
	ClassLoading     Class = "loading"      // the server is loading its data from disk
	ClassClusterDown Class = "clusterdown"  // the cluster, the master or enough replicas are missing
	ClassNoAuth      Class = "noauth"       // wrong or missing password, or missing permission: for an operator to fix
	ClassNoScript    Class = "noscript"     // the script was missing again after it was sent
	ClassOther             = remote.Other
)

// Error is why an operation has no decision. Its text contains no key, value or password.
type Error struct {
	Class  Class
	Node   string // host:port or the path of a socket; empty if the operation reached none
	Unsent bool   // the operation was not sent, so nothing was counted
	text   string
	code   string // the first word of a reply, else empty
}

// Error says what happened, and where.
func (e *Error) Error() string {
	if e.Node == "" {
		return "redis: " + string(e.Class) + ": " + e.text
	}
	return "redis " + e.Node + ": " + string(e.Class) + ": " + e.text
}

// Is reports that e matches [backend.ErrUnsent], if it does.
func (e *Error) Is(target error) bool { return target == backend.ErrUnsent && e.Unsent }

// errBehind is the error of replies that belong to other commands.
var errBehind = errors.New("replies do not match commands")

// classOf returns the class of an error reply by its first word, or "" if the word has none.
func classOf(code string) Class {
	switch code {
	case "READONLY", "MISCONF":
		return ClassReadOnly
	case "OOM":
		return ClassOOM
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

// classify turns an error of go-redis into an Error.
func classify(node string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if reply, ok := errors.AsType[redis.Error](err); ok && !errors.Is(err, redis.Nil) {
		return ofReply(node, reply.Error())
	}
	class := remote.ClassOf(err)
	if errors.Is(err, errBehind) {
		class = ClassReset
	}
	return &Error{Class: class, Node: node, text: remote.Text(err)}
}

// ofReply turns an error reply of a server into an Error.
func ofReply(node, text string) *Error {
	code, _, _ := strings.Cut(text, " ")
	if forbidden.MatchString(text) {
		e := &Error{Class: ClassNoAuth, Node: node, code: "NOPERM", text: "NOPERM: the user may not do what it has to"}
		if name := deniedCommand(text); name != "" {
			e.text = "NOPERM: the user may not run " + name
		} else if strings.Contains(text, "access") {
			e.text = "NOPERM: the user may not use the key of a counter"
		}
		return e
	}
	e := &Error{Class: classOf(code), Node: node, text: remote.Clean(text), code: code}
	if e.Class != "" {
		return e
	}
	e.Class = ClassOther
	if strings.HasPrefix(text, "ERR max number of clients") {
		e.Class = ClassRefused
		return e
	}
	// Redis 6.2 wraps the error reply to a command within a script: "ERR Error running script …: -OOM command not
	// allowed …".
	for word := range strings.FieldsSeq(text) {
		if inner, ok := strings.CutPrefix(word, "-"); ok && code == "ERR" && classOf(inner) != "" {
			e.Class, e.code = classOf(inner), inner
			break
		}
	}
	return e
}

// trips reports whether e counts against a node: the node as a whole cannot serve, not just one operation.
func (e *Error) trips() bool {
	switch e.Class {
	case ClassTimeout, ClassRefused, ClassReset, ClassReadOnly, ClassOOM, ClassBusy, ClassLoading, ClassClusterDown:
		return e.code != "TRYAGAIN"
	case ClassNoAuth, ClassNoScript, ClassOther:
	}
	return false
}
