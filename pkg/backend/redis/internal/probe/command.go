// Package probe finds out what a Redis server is, what it can do and what its user may do, apart from the way of an operation: who it says
// that it is (info.go), which commands it lacks (capabilities.go), and which permissions the user lacks (permissions.go). All that it sends
// changes nothing. It also says what replies mean that are errors (errors.go).
//
// This package is part of the core.
package probe

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Command is a go-redis command that go-redis itself never retries.
type Command struct{ *redis.Cmd }

// NoRetry keeps go-redis from resending what may have been counted: a cluster client then only follows MOVED and ASK.
func (c *Command) NoRetry() bool { return true }

// NewCommand returns a command.
func NewCommand(args ...any) *Command { return &Command{redis.NewCmd(context.Background(), args...)} }

// Reset makes c ready to be sent again, after its arguments were overwritten.
func (c *Command) Reset() {
	c.SetErr(nil)
	c.SetVal(nil)
}
