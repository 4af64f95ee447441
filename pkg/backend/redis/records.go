package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// RecordsAtOnce is how many records are read or written in one call, so that nobody else waits long for Redis.
const RecordsAtOnce = 500

// Records are short texts under names that all replicas share, beside the counters of the main deployment, over a
// connection of their own. Its methods must not be called concurrently.
type Records struct {
	aside

	atOnce int       // how many are read in one call: fewer after an error, since the link may be slow
	all    time.Time // since when all are read, in parts; zero if they are not
}

// allWithin is how long it may take to read all. What was taken away is forgotten after a day: who takes longer begins anew.
const allWithin = 12 * time.Hour

// Records returns the records of b with a name, such as tenants. There are none without scripts, with [ReferenceKeys].
func (b *Backend) Records(name string) (*Records, error) {
	a, err := b.aside("records", name, "", ":text", ":changed", ":gone")
	if err != nil {
		return nil, err
	}
	return &Records{aside: a, atOnce: RecordsAtOnce}, nil
}

var errRecordsReply = errors.New("redis: a reply of records.lua is not understood")

// Changes returns what is new since a version, at most [RecordsAtOnce] records.
func (r *Records) Changes(ctx context.Context, since backend.Version) (backend.RecordChanges, error) {
	if r.same(ctx, since) {
		return backend.RecordChanges{Version: since}, nil
	}
	var out backend.RecordChanges
	amid := "0"
	if !r.all.IsZero() && time.Since(r.all) < allWithin {
		amid = "1"
	}
	reply, err := r.call(ctx, "poll", since.Epoch, strconv.FormatInt(since.Revision, 10), strconv.Itoa(r.atOnce), amid)
	if err != nil {
		r.atOnce = max(1, r.atOnce/4)
		return out, err
	}
	if run := r.link.server.run; run != since.Run && since.Run != "" { // another process may have other records under these revisions
		if reply, err = r.call(ctx, "poll", "", "0", strconv.Itoa(r.atOnce), "0"); err != nil {
			return out, err
		}
	}
	r.atOnce = min(RecordsAtOnce, 2*r.atOnce)
	fields, ok := reply.Val().([]any)
	if !ok || len(fields) != 5 {
		return out, errRecordsReply
	}
	epoch, _ := fields[0].(string)
	revision, _ := fields[1].(string)
	more, _ := fields[2].(int64)
	anew, _ := fields[3].(int64)
	texts, ok := fields[4].([]any)
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil || !ok || len(texts)%2 != 0 {
		return out, errRecordsReply
	}
	out = backend.RecordChanges{
		Version: backend.Version{Run: r.link.server.run, Epoch: epoch, Revision: n},
		Lost:    epoch == "", More: more == 1, Anew: anew == 1,
		Changed: make([]backend.Record, 0, len(texts)/2),
	}
	for i := 0; i < len(texts); i += 2 {
		name, _ := texts[i].(string)
		text, _ := texts[i+1].(string)
		out.Changed = append(out.Changed, backend.Record{Name: name, Text: text, Gone: text == ""})
	}
	switch {
	case !out.More:
		r.all = time.Time{}
	case out.Anew:
		r.all = time.Now()
	}
	return out, nil
}

// same finds out, without the script, whether since is what Redis has. It does not say why it cannot tell.
func (r *Records) same(ctx context.Context, since backend.Version) bool {
	if r.link == nil || since.Epoch == "" {
		return false
	}
	if _, e := r.connect(ctx); e != nil || since.Run != r.link.server.run {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, r.pool.opTimeout())
	defer cancel()
	known, there, changed := newCommand("get", r.keys[0]), newCommand("hmget", r.keys[1], ""), newCommand("zcard", r.keys[2]) //nolint:contextcheck // go-redis stores the context, but does not use it
	if err := r.link.exec(ctx, []redis.Cmder{known, there, changed}); err != nil {
		r.hangUp()
		return false
	}
	text, _ := known.Val().(string)
	texts, _ := there.Val().([]any)
	if n, _ := changed.Val().(int64); n == 0 && since.Revision > 0 {
		return false
	}
	return strings.HasPrefix(text, since.Epoch+" "+strconv.FormatInt(since.Revision, 10)+" ") && len(texts) == 1 && texts[0] == since.Epoch
}

// Put stores records, at most [RecordsAtOnce], and returns the text that each had before, "" if there was none. With back
// only those are stored that the store has not got. It returns [backend.ErrRecordsFull] where there would be more than most, and
// without back [backend.ErrRecordsLost].
// After another error they may have been stored.
func (r *Records) Put(ctx context.Context, records []backend.Record, most int, back bool) (before []string, err error) {
	lacking := "0"
	if back {
		lacking = "1"
	}
	args := []any{"put", rand.Text(), strconv.Itoa(most), lacking}
	for i := range records {
		text := records[i].Text
		if records[i].Gone {
			text = ""
		}
		args = append(args, records[i].Name, text)
	}
	reply, err := r.call(ctx, args...)
	if err != nil {
		return nil, err
	}
	switch reply.Val() {
	case "full":
		return nil, backend.ErrRecordsFull
	case "lost":
		return nil, backend.ErrRecordsLost
	}
	texts, ok := reply.Val().([]any)
	if !ok || len(texts) != len(records) {
		return nil, errRecordsReply
	}
	for _, t := range texts {
		text, _ := t.(string)
		before = append(before, text)
	}
	return before, nil
}

// Leave closes the connection.
func (r *Records) Leave() { r.hangUp() }
