package redis

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/internal/probe"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// store begins the texts of errors.
const store = probe.Store

// The classes of error replies, beside those of package remote.
const (
	ClassReadOnly    = probe.ClassReadOnly    // a replica, or a server that accepts no writes
	ClassBusy        = probe.ClassBusy        // another client's script runs for too long
	ClassLoading     = probe.ClassLoading     // the server is loading its data from disk
	ClassClusterDown = probe.ClassClusterDown // the cluster, the master or enough replicas are missing
	ClassNoAuth      = probe.ClassNoAuth      // wrong or missing password, or missing permission: for an operator to fix
	ClassNoScript    = probe.ClassNoScript    // the script was missing again after it was sent
)

// classify turns an error of go-redis into one of Redis.
func classify(node string, err error) *remote.Error { return probe.Classify(node, err) }

// trips reports whether e counts against a node: the node as a whole cannot serve, not just one operation.
func trips(e *remote.Error) bool {
	switch e.Class {
	case remote.Timeout, remote.Refused, remote.Reset, ClassReadOnly, remote.OOM, ClassBusy, ClassLoading, ClassClusterDown:
		return e.Code != "TRYAGAIN"
	case ClassNoAuth, ClassNoScript, remote.Overload, remote.Other:
	}
	return false
}
