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

// Texts encrypts texts in a backend so that only a holder of the secret can read or create them. Without a secret it stores
// plaintext. With a secret it accepts plaintext only if the file has "previous: clear", because anyone who can write to the
// backend can create it.
type Texts struct {
	keys   *Keys // nil without a secret
	log    *slog.Logger
	unread *throttle.Log
}

// NewTexts returns Texts with keys, which may be nil.
func NewTexts(keys *Keys, log *slog.Logger) *Texts {
	return &Texts{keys: keys, log: log, unread: throttle.Every(time.Minute)}
}

// seal returns the stored form of a text. about is not included; open requires the same value.
func (t *Texts) seal(text []byte, about string) []byte {
	if t.keys == nil {
		return text
	}
	return t.keys.Seal(text, about)
}

// open reverses seal.
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

// leaveOut logs why an entry of the backend is skipped.
func (t *Texts) leaveOut(about string, err error) {
	t.unread.Through(t.log, "").Error("an entry in the backend cannot be read and is skipped: "+
		"give all replicas the same CACHE_KEY_SECRET_FILE, with the previous secret for a while after a change", "what", about, "error", err)
}

// auditKey is the about of acts: their key in Redis.
const auditKey = "rl:{audit}:acts"

var errHuge = errors.New("it is too large, or no longer exists")

// sealedAudit encrypts the acts of an audit store.
type sealedAudit struct {
	audit.Store

	texts *Texts
}

// Audit returns store with encryption by t.
func (t *Texts) Audit(store audit.Store) audit.Store { //nolint:ireturn // declared by the consumer
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

// Page implements [audit.Store]. An unreadable act is empty, so that the length of the page is unchanged.
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

// sealedRegister encrypts the entries of a register, including their keys.
type sealedRegister struct {
	replicated.Store

	texts *Texts
}

// Register returns store with encryption by t.
func (t *Texts) Register(store replicated.Store) replicated.Store { //nolint:ireturn // declared by the consumer
	return sealedRegister{store, t}
}

// about returns the about of an entry: its stored key and times. Open thus detects an entry that was moved or extended, and an
// entry that was restored keeps its original times.
func about(e *replicated.Entry) string {
	return fmt.Sprintf("entry %s %d %d", e.Key, e.Created, e.Expires)
}

// Changes implements [replicated.Store]. An entry that cannot be opened gets an empty key and an invalid text.
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

// Put implements [replicated.Store]. It deletes the entry's previous names, by the previous secret and in plaintext.
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
		whole := fmt.Appendf(nil, "%d %s%s", len(e.Key), e.Key, e.Text) // the length of the key, the key, and the text
		e.Key = names[0]
		e.Text = string(s.texts.seal(whole, about(&e)))
		all = append(all, e)
	}
	return s.Store.Put(ctx, since, all, again)
}

// split returns the key and the text of an opened entry.
func split(whole []byte) (key, text string) {
	length, rest, _ := strings.Cut(string(whole), " ")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", "" // written by no version
	}
	return rest[:n], rest[n:]
}

// sameSecret checks that all replicas of a register have the same secret, by a mark in the names of replicas.
type sameSecret struct {
	replicated.Store

	mark    string // mark of the secret; empty without one
	log     *slog.Logger
	health  *health.Tracker
	part    *health.Part // nil before the first difference
	differs bool
}

// markOf separates the name and status of a replica from the mark of its secret.
const markOf = "#"

// WithSecretCheck returns store with a check, in the log and in health, that its replicas have the same secret.
func WithSecretCheck(store replicated.Store, keys *Keys, log *slog.Logger, h *health.Tracker) replicated.Store { //nolint:ireturn // declared by the consumer
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

// compare checks whether all replicas have the same secret.
func (s *sameSecret) compare(ctx context.Context) {
	names, err := s.Store.Replicas(ctx)
	if err != nil {
		return // tried again soon
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

// report reports replicas with different secrets, or that there are none any more.
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
