package rlqs

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// Script keeps tables of rows in Redis.
//
//go:embed rows.lua
var Script string

// SideChannel calls [Script]; see SideChannel of pkg/backend/redis.
type SideChannel interface {
	Call(ctx context.Context, keys []string, args ...any) ([]any, error)
}

// channels is the number of side channels. It must be the same in all replicas, because it determines the key of a table.
const channels = 8

// rowsAtOnce is the maximum number of limits per call of the script, so that decisions wait less than a millisecond.
const rowsAtOnce = 32

// Tables implements [Rows] in Redis.
type Tables struct{ channels [channels]*tableChannel }

// tableChannel updates the tables of some limits. The caller whose turn it is calls the script for all waiting callers.
type tableChannel struct {
	channel SideChannel
	turn    chan struct{} // contains an element during a call of the script

	mu    sync.Mutex
	waits []*rowCall
}

// rowCall is a request to write a row to a table.
type rowCall struct {
	key  string
	args []any
	done chan struct{} // closed after text or err is set
	text string        // the table
	err  error
}

// NewTables returns a Tables. It opens each side channel by name.
func NewTables(open func(name string) SideChannel) *Tables {
	t := new(Tables)
	for i := range t.channels {
		t.channels[i] = &tableChannel{channel: open("rows" + strconv.Itoa(i)), turn: make(chan struct{}, 1)}
	}
	return t
}

var errReply = errors.New("rlqs: rows.lua returned an invalid reply")

// Agree implements [Rows]. The name of a limit must not contain blanks. After an error, the table may or may not contain the row. Agree
// omits invalid rows, which expire within seconds. The JSON of a row may have fields of later versions.
func (t *Tables) Agree(ctx context.Context, limit string, mine *shares.Row) (rows []shares.Row, err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(limit)) // never fails
	says, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	one := &rowCall{key: ":" + limit, args: []any{mine.Replica, strconv.FormatInt(int64(mine.Life), 10), says}, done: make(chan struct{})}
	if err := t.channels[h.Sum32()%channels].answer(ctx, one); err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(one.text, "\n") {
		if row, err := parseRow(line); err == nil {
			rows = append(rows, row)
		}
	}
	if !slices.ContainsFunc(rows, func(row shares.Row) bool { return row.Replica == mine.Replica }) {
		return nil, errReply
	}
	return rows, nil
}

// answer waits until this or another caller has called the script for one.
func (c *tableChannel) answer(ctx context.Context, one *rowCall) error {
	c.mu.Lock()
	c.waits = append(c.waits, one)
	c.mu.Unlock()
	for {
		select {
		case <-one.done:
			return one.err
		case <-ctx.Done():
			c.mu.Lock()
			c.waits = slices.DeleteFunc(c.waits, func(w *rowCall) bool { return w == one })
			c.mu.Unlock()
			return ctx.Err()
		case c.turn <- struct{}{}:
			c.callAll(context.WithoutCancel(ctx)) // others may have more time; Call has its own timeout
			<-c.turn
		}
	}
}

// callAll calls the script for the callers that have waited longest.
func (c *tableChannel) callAll(ctx context.Context) {
	c.mu.Lock()
	n := min(rowsAtOnce, len(c.waits))
	calls := slices.Clone(c.waits[:n])
	c.waits = slices.Delete(c.waits, 0, n)
	c.mu.Unlock()
	if n == 0 {
		return
	}
	keys, args := make([]string, 0, n), make([]any, 0, 3*n)
	for _, one := range calls {
		keys, args = append(keys, one.key), append(args, one.args...)
	}
	replies, err := c.channel.Call(ctx, keys, args...)
	if err == nil && len(replies) != n {
		err = errReply
	}
	for i, one := range calls {
		if one.err = err; err == nil {
			one.text, _ = replies[i].(string)
			one.err, _ = replies[i].(error) // the key is not a table
		}
		close(one.done)
	}
}

// parseRow parses a line of a table: the replica, the end of the row, and JSON.
func parseRow(line string) (row shares.Row, err error) {
	parts := strings.SplitN(line, " ", 3)
	if len(parts) != 3 {
		return row, errReply
	}
	if err := json.Unmarshal([]byte(parts[2]), &row); err != nil {
		return row, err
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	row.Replica, row.Until = parts[0], shares.Micros(until)
	return row, err
}
