package redis

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// notesAtOnce is how many notes are read in one call at most.
const notesAtOnce = 200

// Notes are short texts that all replicas share, beside the counters of the main deployment. They go over a connection of
// their own, which is opened when it is needed, so that a long queue of operations does not delay them. Its methods must not be
// called concurrently.
type Notes struct {
	aside

	name   string        // of this process
	mark   string        // what follows the name, and what it says of itself
	says   func() string // what it says of itself; nil is nothing
	here   string        // all of that, as Redis has it
	atOnce int           // how many notes are read in one call: fewer after an error, since the link may be slow
	more   bool          // there were more than the last call read
}

// Notes returns the notes of b. There are none without scripts, with [ReferenceKeys].
func (b *Backend) Notes() (*Notes, error) {
	a, err := b.aside("notes", "notes", "", ":id", ":text", ":end", ":gone", ":here", ":secret")
	if err != nil {
		return nil, err
	}
	n := &Notes{aside: a, name: rand.Text()[:12], atOnce: notesAtOnce}
	if host, err := os.Hostname(); err == nil {
		n.name = host + "/" + n.name
	}
	return n, nil
}

// Mark adds a text to the name of this process among the replicas. It must be called before all other methods.
func (n *Notes) Mark(text string) { n.mark += text }

// Says has this process say of itself, at each beat, what f returns. It must be called before all other methods.
func (n *Notes) Says(f func() string) { n.says = f }

// Name returns the name of this process among the replicas.
func (n *Notes) Name() string { return n.name }

// Poll returns what is new since a version. With beat, this process is one of the replicas from now on.
func (n *Notes) Poll(ctx context.Context, since backend.Version, beat bool) (backend.Notes, error) {
	name := ""
	if beat {
		if name = n.name; n.says != nil {
			name += " " + n.says()
		}
		name += n.mark
	} else if !n.more {
		if same, ok := n.same(ctx, since); ok {
			return same, nil
		}
	}
	reply, err := n.call(ctx, "poll", since.Epoch, strconv.FormatInt(since.Revision, 10), strconv.Itoa(n.atOnce), name, n.here)
	if n.more = false; err != nil {
		n.atOnce = max(1, n.atOnce/4)
		return backend.Notes{}, err
	}
	if beat {
		n.here = name
	}
	n.atOnce = min(notesAtOnce, 2*n.atOnce)
	var out backend.Notes
	fields, ok := reply.Val().([]any)
	if !ok || len(fields) != 7 {
		return out, errNotesReply
	}
	var head [4]string // of the version
	for i := range head {
		head[i], _ = fields[i].(string)
	}
	version, err := parseVersion(head)
	more, _ := fields[4].(int64)
	lost, _ := fields[5].(int64)
	texts, ok := fields[6].([]any)
	if err != nil || !ok {
		return out, errNotesReply
	}
	out.Version, out.More, out.Lost = version, more == 1, lost == 1
	out.Version.Run, n.more = n.link.server.run, out.More
	for _, t := range texts {
		text, _ := t.(string)
		if note, err := parseNote([]byte(text)); err == nil { // what no script wrote must not hide the others
			out.Changed = append(out.Changed, note)
		}
	}
	return out, nil
}

// same finds out, without the script, whether since is what Redis has. It does not say why it cannot tell.
func (n *Notes) same(ctx context.Context, since backend.Version) (same backend.Notes, ok bool) {
	if n.link == nil {
		return same, false
	}
	if _, e := n.connect(ctx); e != nil || since.Run != n.link.server.run {
		return same, false
	}
	ctx, cancel := context.WithTimeout(ctx, n.pool.opTimeout())
	defer cancel()
	known, held := newCommand("get", n.keys[0]), newCommand("zcard", n.keys[2]) //nolint:contextcheck // go-redis stores the context, but does not use it
	if err := n.link.exec(ctx, []redis.Cmder{known, held}); err != nil {
		n.hangUp()
		return same, false
	}
	many, isNumber := held.Val().(int64)
	if known.Err() != nil && !errors.Is(known.Err(), redis.Nil) || !isNumber {
		return same, false
	}
	text, _ := known.Val().(string)
	if text == "" {
		return backend.Notes{Version: since}, many == 0 && since.Epoch == ""
	}
	fields := strings.Fields(text)
	if len(fields) != 5 || fields[4] != strconv.FormatInt(many, 10) {
		return same, false
	}
	version, err := parseVersion([4]string(fields[:4]))
	version.Run = since.Run
	return backend.Notes{Version: version}, err == nil && version == since
}

// parseVersion reads epoch, revision, floor and horizon.
func parseVersion(head [4]string) (v backend.Version, err error) {
	v.Epoch = head[0]
	for i, n := range []*int64{&v.Revision, &v.Floor, &v.Horizon} {
		if *n, err = strconv.ParseInt(head[1+i], 10, 64); err != nil {
			return v, errNotesReply
		}
	}
	return v, nil
}

var errNotesReply = errors.New("redis: a reply of notes.lua is not understood")

// parseNote reads the text of a note in Redis.
func parseNote(text []byte) (backend.Note, error) {
	parts := bytes.SplitN(text, []byte(" "), 5)
	if len(parts) != 5 {
		return backend.Note{}, errNotesReply
	}
	at, err := strconv.ParseInt(string(parts[0]), 10, 64)
	ends, err2 := strconv.ParseInt(string(parts[1]), 10, 64)
	if err != nil || err2 != nil {
		return backend.Note{}, errNotesReply
	}
	return backend.Note{ID: string(parts[3]), At: at, Ends: time.UnixMilli(ends), Gone: string(parts[2]) == "1", Text: parts[4]}, nil
}

// Put stores notes, each later than the one that it takes the place of, and returns when they were made. It returns
// [backend.ErrNotesFull] where there would be more than most. After another error they may have been stored.
func (n *Notes) Put(ctx context.Context, notes []backend.Note, most int) (at []int64, err error) {
	return n.put(ctx, notes, []any{"put", rand.Text(), strconv.Itoa(most), "0", "0"})
}

// PutBack stores notes again that Redis has lost, unless it has later ones or they were taken away and forgotten. From then on
// what is not later than horizon, and not there, was taken away.
func (n *Notes) PutBack(ctx context.Context, notes []backend.Note, horizon int64) error {
	_, err := n.put(ctx, notes, []any{"put", rand.Text(), "0", "1", strconv.FormatInt(horizon, 10)})
	return err
}

func (n *Notes) put(ctx context.Context, notes []backend.Note, args []any) (at []int64, err error) {
	for i := range notes {
		note := &notes[i]
		gone := "0"
		if note.Gone {
			gone = "1"
		}
		args = append(args, note.ID, strconv.FormatInt(note.Ends.UnixMilli(), 10), gone, strconv.FormatInt(note.At, 10), note.Text)
	}
	reply, err := n.call(ctx, args...)
	if err != nil {
		return nil, err
	}
	if reply.Val() == "full" {
		return nil, backend.ErrNotesFull
	}
	times, ok := reply.Val().([]any)
	if !ok || len(times) != len(notes) {
		return nil, errNotesReply
	}
	for _, t := range times {
		text, _ := t.(string)
		made, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errNotesReply
		}
		at = append(at, made)
	}
	return at, nil
}

// Secret returns the secret that all replicas share. If there is none yet it is the one that is offered.
func (n *Notes) Secret(ctx context.Context, offered []byte) ([]byte, error) {
	reply, err := n.call(ctx, "secret", offered)
	if err != nil {
		return nil, err
	}
	secret, ok := reply.Val().(string)
	if !ok || secret == "" {
		return nil, errNotesReply
	}
	return []byte(secret), nil
}

// Replicas returns the names of the processes that have polled, with beat, within the last 5 seconds, the latest last. Behind a
// name there may be a blank and what its process says of itself, and then its mark.
func (n *Notes) Replicas(ctx context.Context) ([]string, error) {
	reply, err := n.call(ctx, "here")
	if err != nil {
		return nil, err
	}
	all, ok := reply.Val().([]any)
	if !ok {
		return nil, errNotesReply
	}
	names := make([]string, 0, len(all))
	for _, name := range all {
		text, _ := name.(string)
		names = append(names, text)
	}
	return names, nil
}

// Leave takes this process off the replicas, and closes the connection.
func (n *Notes) Leave(ctx context.Context) {
	if n.link == nil {
		return
	}
	_, _ = n.call(ctx, "leave", n.here) // else it is taken off later
	n.hangUp()
}
