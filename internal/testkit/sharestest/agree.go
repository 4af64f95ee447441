package sharestest

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// Agree stores a row in the table of a bucket, at a time on the store's clock, and returns the table without expired rows. It is the
// simple twin of rows.lua in internal/envoy/rlqs, whose test compares them.
func Agree(table []shares.Row, mine shares.Row, now shares.Micros) []shares.Row {
	table = slices.DeleteFunc(slices.Clone(table), func(r shares.Row) bool { return r.Replica == mine.Replica || r.Until <= now })
	mine.Until = now + mine.Life
	return append(table, mine)
}
