package redis

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// rowConns is how many connections the rows of limits go over, each of them one call at a time. Replicas have the same number, since the
// keys of a limit's rows follow from it.
const rowConns = 8

// rowsAtOnce is how many limits one call of the script is about, so that others wait for it less than a millisecond.
const rowsAtOnce = 32

// Rows is what replicas that divide limits tell each other, beside the counters of the main deployment: one small table for each limit. It
// has connections of its own, which are opened when they are needed. It is safe for concurrent use.
type Rows struct{ conns [rowConns]*rowConn }

// rowConn is what the rows of some limits go over. Their keys have one slot. One of those who wait for an answer calls the script, for all
// of them.
type rowConn struct {
	aside

	prefix string        // of the keys
	turn   chan struct{} // has room for the one who calls

	mu    sync.Mutex
	waits []*rowCall
}

// rowCall is a row that is to be put in its table.
type rowCall struct {
	key  string
	args []any
	done chan struct{} // closed once there is an answer
	text string
	err  error
}

// Rows returns the tables of b. There are none without scripts, with [ReferenceKeys].
func (b *Backend) Rows() (*Rows, error) {
	r := new(Rows)
	for i := range r.conns {
		a, err := b.aside("rows", "rows"+strconv.Itoa(i), "")
		if err != nil {
			return nil, err
		}
		r.conns[i] = &rowConn{aside: a, prefix: a.keys[0] + ":", turn: make(chan struct{}, 1)}
	}
	return r, nil
}

var errRowsReply = errors.New("redis: a reply of rows.lua is not understood")

// Agree puts the row of a replica into the table of a limit, whose name has no blank, and returns the table, at the time of Redis: what
// Agree of package sharestest says. After an error the row may be there. What a row says is JSON, so that later versions can say more;
// a row that cannot be read is left out, and ends within seconds.
func (r *Rows) Agree(ctx context.Context, limit string, mine *shares.Row) (rows []shares.Row, err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(limit)) // it never fails
	says, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	c := r.conns[h.Sum32()%rowConns]
	one := &rowCall{
		key:  c.prefix + limit,
		args: []any{mine.Replica, strconv.FormatInt(int64(mine.Life), 10), says},
		done: make(chan struct{}),
	}
	if err := c.answer(ctx, one); err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(one.text, "\n") {
		if row, err := parseRow(line); err == nil {
			rows = append(rows, row)
		}
	}
	if !slices.ContainsFunc(rows, func(row shares.Row) bool { return row.Replica == mine.Replica }) {
		return nil, errRowsReply
	}
	return rows, nil
}

// answer waits until one has its answer, from another one's call of the script or its own.
func (c *rowConn) answer(ctx context.Context, one *rowCall) error {
	c.mu.Lock()
	c.waits = append(c.waits, one)
	c.mu.Unlock()
	for {
		select {
		case <-one.done:
			return one.err
		case <-ctx.Done():
			c.leave(one)
			return ctx.Err()
		case c.turn <- struct{}{}:
			c.callAll(context.WithoutCancel(ctx)) // others may have more time; [aside.call] has a bound of its own
			<-c.turn
		}
	}
}

// leave takes one from those that wait, if it is still there.
func (c *rowConn) leave(one *rowCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = slices.DeleteFunc(c.waits, func(w *rowCall) bool { return w == one })
}

// callAll calls the script for those who have waited longest.
func (c *rowConn) callAll(ctx context.Context) {
	c.mu.Lock()
	n := min(rowsAtOnce, len(c.waits))
	calls := slices.Clone(c.waits[:n])
	c.waits = slices.Delete(c.waits, 0, n)
	c.mu.Unlock()
	if n == 0 {
		return
	}
	c.keys = c.keys[:0]
	var args []any
	for _, one := range calls {
		c.keys = append(c.keys, one.key)
		args = append(args, one.args...)
	}
	reply, err := c.call(ctx, args...)
	var texts []any
	if err == nil {
		if texts, _ = reply.Val().([]any); len(texts) != n {
			err = errRowsReply
		}
	}
	for i, one := range calls {
		if one.err = err; err == nil {
			one.text, one.err = rowsOf(texts[i])
		}
		close(one.done)
	}
}

// rowsOf returns the rows of one limit in a reply, or why that limit has none.
func rowsOf(reply any) (string, error) {
	switch reply := reply.(type) {
	case string:
		return reply, nil
	case error:
		return "", reply
	default:
		return "", errRowsReply
	}
}

// parseRow reads a row as rows.lua has it.
func parseRow(line string) (row shares.Row, err error) {
	parts := strings.SplitN(line, " ", 3)
	if len(parts) != 3 {
		return row, errRowsReply
	}
	if err := json.Unmarshal([]byte(parts[2]), &row); err != nil {
		return row, err
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	row.Replica, row.Until = parts[0], shares.Micros(until)
	return row, err
}
