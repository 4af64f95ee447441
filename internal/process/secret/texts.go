package secret

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
)

// Texts keeps texts in a backend so that only a holder of the secret can read or make them. Without a secret it keeps them in clear. With
// one it reads what is in clear only if the file says that it may be from before: anyone who can write to the backend can make that.
type Texts struct {
	keys   *Keys // nil if there is no secret
	log    *slog.Logger
	unread *throttle.Log
}

// NewTexts returns Texts with keys, which may be nil.
func NewTexts(keys *Keys, log *slog.Logger) *Texts {
	return &Texts{keys: keys, log: log, unread: throttle.Every(time.Minute)}
}

// seal returns a text as the backend gets it. about is not in it, and must be the same when it is opened.
func (t *Texts) seal(text []byte, about string) []byte {
	if t.keys == nil {
		return text
	}
	return t.keys.Seal(text, about)
}

// open undoes what seal did.
func (t *Texts) open(text []byte, about string) ([]byte, error) {
	var open []byte
	var err error
	switch sealed := Sealed(text); {
	case !sealed && (t.keys == nil || t.keys.Clear):
		return text, nil
	case !sealed:
		err = errors.New("it is in plaintext, but CACHE_KEY_SECRET_FILE has no line previous: clear")
	case t.keys == nil:
		err = errors.New("it is sealed, but CACHE_KEY_SECRET_FILE is not set")
	default:
		if open, err = t.keys.Open(text, about); err == nil {
			return open, nil
		}
	}
	t.leaveOut(about, err)
	return nil, err
}

// leaveOut logs why something in the store is left out.
func (t *Texts) leaveOut(about string, err error) {
	t.unread.Through(t.log, "").Error("an entry in the backend cannot be read and is skipped: "+
		"give all replicas the same CACHE_KEY_SECRET_FILE, with the previous secret for a while after a change", "what", about, "error", err)
}

// auditKey is what acts are sealed about: where they are.
const auditKey = "rl:{audit}:acts"

var errHuge = errors.New("it is too large, or no longer exists")

// sealedAudit keeps acts so that only processes with the secret can read them.
type sealedAudit struct {
	audit.Store

	texts *Texts
}

// Audit returns store, which keeps acts in t.
func (t *Texts) Audit(store audit.Store) audit.Store { //nolint:ireturn // its consumer's own
	return sealedAudit{store, t}
}

// Append implements [audit.Store].
func (s sealedAudit) Append(ctx context.Context, ids []string, acts [][]byte, most int) error {
	sealed := make([][]byte, len(acts))
	for i, act := range acts {
		sealed[i] = s.texts.seal(act, auditKey)
	}
	return s.Store.Append(ctx, ids, sealed, most)
}

// Page implements [audit.Store]. An act that cannot be read is empty, so that a page is as long as it is.
func (s sealedAudit) Page(ctx context.Context, skip, n int) ([][]byte, error) {
	acts, err := s.Store.Page(ctx, skip, n)
	for i, act := range acts {
		if len(act) == 0 {
			s.texts.leaveOut(auditKey, errHuge)
			continue
		}
		acts[i], _ = s.texts.open(act, auditKey)
	}
	return acts, err
}

// sealedRegister keeps the entries of a register so that only processes with the secret can read them, their keys included.
type sealedRegister struct {
	replicated.Store

	texts *Texts
}

// Register returns store, which keeps its entries in t.
func (t *Texts) Register(store replicated.Store) replicated.Store { //nolint:ireturn // its consumer's own
	return sealedRegister{store, t}
}

// about is what the seal of an entry is about: all that the store has of it beside the text. So a holder of the secret notices an entry
// that was moved or lengthened, and one that was put back has the time that it had.
func about(e *replicated.Entry) string {
	return fmt.Sprintf("entry %s %d %d", e.Key, e.Made, e.Expires)
}

// Changes implements [replicated.Store]. What cannot be opened is no entry of any table, under a key that none has.
func (s sealedRegister) Changes(ctx context.Context, since replicated.Revision, self string) (replicated.Changes, error) {
	all, err := s.Store.Changes(ctx, since, self)
	for i := range all.Entries {
		e := &all.Entries[i]
		whole, err := s.texts.open([]byte(e.Text), about(e))
		switch {
		case err != nil:
			if s.texts.keys != nil && !errors.Is(err, ErrOther) {
				all.Unread = append(all.Unread, about(e))
			}
			e.Key, e.Text = "", "unread"
		case Sealed([]byte(e.Text)):
			e.Key, e.Text = split(whole)
		}
	}
	return all, err
}

// Put implements [replicated.Store]. An entry that is there under other names, in clear or by the previous secret, is taken away there.
func (s sealedRegister) Put(ctx context.Context, since replicated.Revision, entries []replicated.Entry, again bool) (replicated.Revision, error) {
	if s.texts.keys == nil {
		return s.Store.Put(ctx, since, entries, again)
	}
	var all []replicated.Entry
	for _, e := range entries {
		names := s.texts.keys.Names(e.Key)
		for _, name := range names[1:] {
			all = append(all, replicated.Entry{Key: name})
		}
		whole := fmt.Appendf(nil, "%d %s%s", len(e.Key), e.Key, e.Text) // with the key, behind its length
		e.Key = names[0]
		e.Text = string(s.texts.seal(whole, about(&e)))
		all = append(all, e)
	}
	return s.Store.Put(ctx, since, all, again)
}

// split returns the key and the text of an entry that was opened.
func split(whole []byte) (key, text string) {
	length, rest, _ := strings.Cut(string(whole), " ")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", "" // no version has written that
	}
	return rest[:n], rest[n:]
}

// sameSecret sees to it that all replicas of a register have the same secret: the name of each has a mark of it.
type sameSecret struct {
	replicated.Store

	mark    string // of the secret; empty without one
	log     *slog.Logger
	health  *health.Tracker
	part    *health.Part // nil until it matters
	differs bool
}

// markOf separates the name of a replica, and what it says of itself, from the mark of its secret.
const markOf = "#"

// Same returns store, and reports to the log and to health whether its replicas have different secrets.
func Same(store replicated.Store, keys *Keys, log *slog.Logger, h *health.Tracker) replicated.Store { //nolint:ireturn // its consumer's own
	v := &sameSecret{Store: store, log: log, health: h}
	if keys != nil {
		v.mark = keys.Mark
	}
	return v
}

// Changes implements [replicated.Store].
func (s *sameSecret) Changes(ctx context.Context, since replicated.Revision, self string) (replicated.Changes, error) {
	if self != "" && s.mark != "" {
		self += markOf + s.mark
	}
	all, err := s.Store.Changes(ctx, since, self)
	if err == nil && self != "" {
		s.compare(ctx)
	}
	return all, err
}

// Replicas implements [replicated.Store].
func (s *sameSecret) Replicas(ctx context.Context) ([]string, error) {
	names, err := s.Store.Replicas(ctx)
	for i, name := range names {
		names[i], _, _ = strings.Cut(name, markOf)
	}
	return names, err
}

// compare finds out whether all replicas have the same secret.
func (s *sameSecret) compare(ctx context.Context) {
	names, err := s.Store.Replicas(ctx)
	if err != nil {
		return // it is asked again soon
	}
	var others []string
	for _, name := range names {
		if replica, mark, _ := strings.Cut(name, markOf); mark != s.mark {
			name, _, _ := strings.Cut(replica, " ")
			others = append(others, name)
		}
	}
	if differs := len(others) > 0; differs != s.differs {
		s.differs = differs
		s.report(others)
	}
}

// report says that replicas have other secrets, or no longer do.
func (s *sameSecret) report(others []string) {
	if s.part == nil {
		s.part = s.health.Add("cache key secret", true, "")
	}
	if len(others) == 0 {
		s.log.Info("all replicas have the same CACHE_KEY_SECRET_FILE again")
		s.part.Set(true, "")
		return
	}
	const what = "replicas that share this backend have a different CACHE_KEY_SECRET_FILE, or none: they count separately from this replica, so limits admit more"
	s.log.Error(what+"; give all of them the same file", "replicas", strings.Join(others, ", "))
	s.part.Degrade(what)
}
