package replicated

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Script stores entries in Redis.
//
//go:embed register.lua
var Script string

// Limits of one call, which must not delay decisions by more than a millisecond.
const (
	readsAtOnce  = 150   // entries, about 4 µs each
	writesAtOnce = 50    // entries, about 13 µs each
	writtenBytes = 48000 // no entry is added beyond this size; the largest entry has 20 KB

	readFactor = 3 // read at most this many times the maximum: entries may have names of two secrets, and several replicas may have stored them again
)

// SideChannel runs [Script]; see SideChannel of pkg/backend/redis.
type SideChannel interface {
	Call(ctx context.Context, keys []string, args ...any) ([]any, error)
	Key(suffix string) string
	Close()
}

// ScriptStore is a [Store] in Redis.
type ScriptStore struct {
	channel SideChannel
	most    int    // maximum number of entries
	atOnce  int    // maximum number of entries in one call; reduced after an error, because the link may be slow
	failed  bool   // whether the last call failed
	here    string // the last self passed to Changes
	unread  string // a key with an invalid value, reported by the next Changes
}

// NewScriptStore returns a store of at most most entries.
func NewScriptStore(c SideChannel, most int) *ScriptStore {
	return &ScriptStore{channel: c, most: most, atOnce: readsAtOnce}
}

var errReply = errors.New("replicated: register.lua returned an invalid reply")

func (s *ScriptStore) call(ctx context.Context, args ...any) ([]any, error) {
	return s.channel.Call(ctx, []string{":entries", ":changed", ":ends", ":tags", ":here", ":secret"}, args...)
}

// only returns the text of a reply with a single element.
func only(reply []any) (text string, ok bool) {
	if len(reply) == 1 {
		text, ok = reply[0].(string)
	}
	return text, ok
}

// Changes implements [Store].
func (s *ScriptStore) Changes(ctx context.Context, since Revision, self string) (c Changes, err error) {
	fields, err := s.call(ctx, "changes", strconv.FormatInt(since.Number, 10), since.Tag, strconv.Itoa(s.atOnce), self, s.here,
		strconv.Itoa(readFactor*s.most))
	if s.adapt(err); err != nil {
		return c, err
	}
	s.here = cmp.Or(self, s.here)
	if len(fields) != 6 {
		return c, errReply
	}
	texts, ok := fields[5].([]any)
	number, err := parseInt(fields[1])
	now, err2 := parseInt(fields[3])
	if err != nil || err2 != nil || !ok {
		return c, errReply
	}
	tag, _ := fields[2].(string)
	c = Changes{
		Incremental: fields[0] == int64(1), Revision: Revision{number, tag}, Now: now, More: fields[4] == int64(1), Entries: make([]Entry, 0, len(texts)/2),
	}
	for i := 0; i+1 < len(texts); i += 2 {
		key, _ := texts[i].(string)
		text, _ := texts[i+1].(string)
		if e, err := parseEntry(key, text); err == nil {
			c.Entries = append(c.Entries, e)
		} else {
			c.Unread = append(c.Unread, s.channel.Key(":entries")+" "+key)
		}
	}
	if s.unread != "" {
		c.Unread, s.unread = append(c.Unread, s.unread), ""
	}
	return c, nil
}

func parseInt(field any) (int64, error) {
	text, _ := field.(string)
	return strconv.ParseInt(text, 10, 64)
}

// parseEntry parses an entry's text in the store: Created, Expires, and Text.
func parseEntry(key, text string) (Entry, error) {
	made, rest, _ := strings.Cut(text, " ")
	expires, text, ok := strings.Cut(rest, " ")
	if !ok {
		return Entry{}, errReply
	}
	e := Entry{Key: key, Text: text}
	var err, err2 error
	e.Created, err = parseInt(made)
	e.Expires, err2 = parseInt(expires)
	if max(e.Created, e.Expires) > 1<<52 { // not written by a server: no change could be later
		err = errReply
	}
	return e, errors.Join(err, err2)
}

// adapt reduces the size of the next call after an error, and increases it otherwise.
func (s *ScriptStore) adapt(err error) {
	if s.failed = err != nil; s.failed {
		s.atOnce = max(1, s.atOnce/4)
	} else {
		s.atOnce = min(readsAtOnce, 2*s.atOnce)
	}
}

// Put implements [Store].
func (s *ScriptStore) Put(ctx context.Context, since Revision, entries []Entry, again bool) (Revision, error) {
	for len(entries) > 0 {
		args, n := s.page(since, entries, again)
		reply, err := s.call(ctx, args...)
		if s.adapt(err); err != nil {
			return since, err
		}
		switch tag, ok := only(reply); {
		case !ok:
			return since, errReply
		case tag == "full":
			return since, ErrFull
		case tag == "behind":
			return since, ErrBehind
		default:
			since.Tag = tag
		}
		entries = entries[n:]
	}
	return since, nil
}

// page returns the arguments of a call that stores the first n entries.
func (s *ScriptStore) page(since Revision, entries []Entry, again bool) (args []any, n int) {
	how, most := "new", s.most
	if again {
		how, most = "again", 0
	}
	args = []any{"put", strconv.FormatInt(since.Number, 10), since.Tag, rand.Text()[:12], strconv.Itoa(most)}
	for size := 0; n < len(entries) && n < min(s.atOnce, writesAtOnce) && size < writtenBytes; n++ {
		e := &entries[n]
		if e.Created == 0 {
			args = append(args, e.Key, "gone", "0", "")
			continue
		}
		args = append(args, e.Key, how, strconv.FormatInt(e.Expires, 10), fmt.Sprintf("%d %d %s", e.Created, e.Expires, e.Text))
		size += len(e.Key) + len(e.Text)
	}
	return args, n
}

// Secret returns the secret that all replicas share, after storing offered as the secret if there is none.
func (s *ScriptStore) Secret(ctx context.Context, offered []byte) ([]byte, error) {
	reply, err := s.call(ctx, "secret", offered)
	if err != nil {
		return nil, err
	}
	secret, _ := only(reply)
	if secret == "" {
		return nil, fmt.Errorf("redis: %s was not written by a server: delete it", s.channel.Key(":secret"))
	}
	return []byte(secret), nil
}

// Replicas implements [Store]. It returns the replicas with a heartbeat in the last 5 seconds.
func (s *ScriptStore) Replicas(ctx context.Context) ([]string, error) {
	reply, err := s.call(ctx, "here")
	if err != nil {
		return nil, err
	}
	names := make([]string, len(reply))
	for i := range reply {
		var ok bool
		if names[i], ok = reply[i].(string); !ok {
			s.unread = s.channel.Key(":here")
			return nil, errReply
		}
	}
	return names, nil
}

// Leave implements [Store].
func (s *ScriptStore) Leave(ctx context.Context) {
	if s.here != "" && !s.failed {
		_, _ = s.call(ctx, "leave", s.here) // after an error, the name expires
	}
	s.channel.Close()
}
