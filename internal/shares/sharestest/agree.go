package sharestest

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// Agree puts a row into the table of a bucket at a time of the store's clock, and returns the table without dead rows. It is
// the plain twin of rows.lua in pkg/backend/redis, whose test compares them.
//
// Each replica may have what it wants as far as the parts of the others leave room, and in any case what it holds, so the
// sum of the parts does not exceed the rate that the last one gave, unless that rate falls; then parts shrink as their
// replicas ask again.
func Agree(table []shares.Row, mine shares.Row, now shares.Micros) []shares.Row {
	table = slices.DeleteFunc(slices.Clone(table), func(r shares.Row) bool { return r.Replica == mine.Replica || r.Until <= now })
	others := 0.0
	for i := range table {
		others += table[i].Part
	}
	mine.Part = max(mine.Held, min(mine.Want, mine.Cap-others))
	mine.Until = now + mine.Life
	return append(table, mine)
}
