package redis

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// rowConns is how many connections the rows of limits go over, each of them one call at a time. Replicas have the same number, since the
// keys of a limit's rows follow from it.
const rowConns = 8

// Rows is what replicas that divide limits tell each other, beside the counters of the main deployment: one small table for each limit. It
// has connections of its own, which are opened when they are needed. It is safe for concurrent use.
type Rows struct{ free [rowConns]chan *rowConn }

// rowConn is what the rows of some limits go over. Their keys have one slot.
type rowConn struct {
	aside

	prefix string // of the keys
}

// Rows returns the tables of b. There are none without scripts, with [ReferenceKeys].
func (b *Backend) Rows() (*Rows, error) {
	r := new(Rows)
	for i := range r.free {
		a, err := b.aside("rows", "rows"+strconv.Itoa(i), "")
		if err != nil {
			return nil, err
		}
		r.free[i] = make(chan *rowConn, 1)
		r.free[i] <- &rowConn{a, a.keys[0] + ":"}
	}
	return r, nil
}

var errRowsReply = errors.New("redis: a reply of rows.lua is not understood")

// Agree does what shares.Agree does, with the table of a limit, whose name has no blank, at the time of Redis. After an error the row may
// be there. What a row says is JSON, so that later versions can say more; a row that cannot be read is left out, and ends within seconds.
func (r *Rows) Agree(ctx context.Context, limit string, mine *shares.Row) (rows []shares.Row, err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(limit)) // it never fails
	free := r.free[h.Sum32()%rowConns]
	var c *rowConn
	select {
	case c = <-free:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { free <- c }()
	says, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	c.keys[0] = c.prefix + limit
	reply, err := c.call(ctx, mine.Replica, strconv.FormatInt(int64(mine.Life), 10), number(mine.Held), number(mine.Want), number(mine.Cap), says)
	if err != nil {
		return nil, err
	}
	text, ok := reply.Val().(string)
	if !ok {
		return nil, errRowsReply
	}
	for line := range strings.SplitSeq(text, "\n") {
		if row, err := parseRow(line); err == nil {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// parseRow reads a row as rows.lua has it.
func parseRow(line string) (row shares.Row, err error) {
	parts := strings.SplitN(line, " ", 4)
	if len(parts) != 4 {
		return row, errRowsReply
	}
	if err := json.Unmarshal([]byte(parts[3]), &row); err != nil {
		return row, err
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return row, err
	}
	row.Replica, row.Until = parts[0], shares.Micros(until)
	row.Part, err = strconv.ParseFloat(parts[2], 64)
	return row, err
}
