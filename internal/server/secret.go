package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/audit"
	"github.com/ratelimitd/ratelimitd/internal/controls"
	"github.com/ratelimitd/ratelimitd/internal/health"
	"github.com/ratelimitd/ratelimitd/internal/secret"
	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// secretKeys returns what is made of CACHE_KEY_SECRET_FILE; nil if it is not set.
func secretKeys(s *settings.Settings) (*secret.Keys, error) {
	if s.Backend.KeySecretFile == "" {
		return nil, nil //nolint:nilnil // no secret is a setting too
	}
	keys, err := secret.Read(s.Backend.KeySecretFile)
	if err != nil {
		return nil, fmt.Errorf("reading CACHE_KEY_SECRET_FILE: %w", err)
	}
	return keys, nil
}

func counterSecret(keys *secret.Keys) *descriptors.Secret {
	if keys == nil {
		return nil
	}
	return descriptors.NewSecret(keys.Counters)
}

// CounterSecret returns what makes the names of counters with these settings; nil if they are plain hashes.
func CounterSecret(s *settings.Settings) (*descriptors.Secret, error) {
	keys, err := secretKeys(s)
	return counterSecret(keys), err
}

// markedStore is a store of notes in which replicas have names, with a mark of their own.
type markedStore interface {
	controls.Store

	// Mark adds a text to the name of this process among the replicas. It is called before anything else.
	Mark(text string)
	// Says has this process say of itself what f returns. It is called before anything else.
	Says(f func() string)
}

// sealedStore keeps texts so that only who has the secret can read them, and sees to it that all replicas have the same. Without a
// secret it keeps them in clear, and sees to the same. What is in clear is read with a secret too, since it may be from before.
type sealedStore struct {
	markedStore

	keys    *secret.Keys // nil if there is no secret
	mark    string       // of the secret
	log     *slog.Logger
	health  *health.Tracker
	part    *health.Part // nil until it matters
	differs bool
	said    time.Time // when the log said last that something cannot be read
}

// markOf separates the name of a replica from the mark of its secret.
const markOf = "#"

func newSealedStore(n markedStore, keys *secret.Keys, log *slog.Logger, h *health.Tracker) *sealedStore {
	s := &sealedStore{markedStore: n, keys: keys, log: log, health: h}
	if keys != nil {
		s.mark = keys.Mark
		n.Mark(markOf + keys.Mark)
	}
	return s
}

// Poll implements [controls.Store].
func (s *sealedStore) Poll(ctx context.Context, since backend.Version, beat bool) (backend.Notes, error) {
	all, err := s.markedStore.Poll(ctx, since, beat)
	if err != nil {
		return all, err
	}
	if beat {
		s.compare(ctx)
	}
	read := all.Changed[:0]
	for _, n := range all.Changed {
		if err := s.open(&n); err != nil {
			s.unreadable("a control", err)
			continue
		}
		read = append(read, n)
	}
	all.Changed = read
	return all, nil
}

// Put implements [controls.Store].
func (s *sealedStore) Put(ctx context.Context, notes []backend.Note, most int) ([]int64, error) {
	return s.markedStore.Put(ctx, s.seal(notes), most)
}

// PutBack implements [controls.Store].
func (s *sealedStore) PutBack(ctx context.Context, notes []backend.Note, horizon int64) error {
	return s.markedStore.PutBack(ctx, s.seal(notes), horizon)
}

// Replicas implements [controls.Store].
func (s *sealedStore) Replicas(ctx context.Context) ([]string, error) {
	names, err := s.markedStore.Replicas(ctx)
	for i, name := range names {
		names[i], _, _ = strings.Cut(name, markOf)
	}
	return names, err
}

// about is what a note says in clear, and nobody may change.
func about(n *backend.Note) string {
	return "note " + n.ID + " " + strconv.FormatInt(n.Ends.UnixMilli(), 10) + " " + strconv.FormatBool(n.Gone)
}

// sealedAudit keeps acts so that only processes with the secret can read them.
type sealedAudit struct {
	audit.Store

	by *sealedStore
}

// Append implements [audit.Store].
func (s sealedAudit) Append(ctx context.Context, acts [][]byte, most int) error {
	if s.by.keys == nil {
		return s.Store.Append(ctx, acts, most)
	}
	sealed := make([][]byte, len(acts))
	for i, act := range acts {
		sealed[i] = s.by.keys.Seal(act, "act")
	}
	return s.Store.Append(ctx, sealed, most)
}

// Page implements [audit.Store]. An act that cannot be read stands as an empty object, so that a page is as long as it is.
func (s sealedAudit) Page(ctx context.Context, skip, n int) ([][]byte, error) {
	acts, err := s.Store.Page(ctx, skip, n)
	for i, act := range acts {
		if acts[i], err = s.by.text(act, "act"); err != nil {
			s.by.unreadable("an act of an operator", err)
			acts[i], err = []byte("{}"), nil
		}
	}
	return acts, err
}

// seal returns notes as the store gets them. The ID of a control goes into the text, and
// another name takes its place.
func (s *sealedStore) seal(notes []backend.Note) []backend.Note {
	if s.keys == nil {
		return notes
	}
	sealed := make([]backend.Note, len(notes))
	for i, n := range notes {
		text := append([]byte(n.ID+" "), n.Text...)
		n.ID = s.keys.Name(n.ID)
		n.Text = s.keys.Seal(text, about(&n))
		sealed[i] = n
	}
	return sealed
}

// open undoes what seal did. A note in clear stays as it is.
func (s *sealedStore) open(n *backend.Note) error {
	if !secret.Sealed(n.Text) {
		return nil
	}
	whole, err := s.text(n.Text, about(n))
	if err != nil {
		return err
	}
	id, text, _ := strings.Cut(string(whole), " ")
	n.ID, n.Text = id, []byte(text)
	return nil
}

func (s *sealedStore) text(text []byte, about string) ([]byte, error) {
	switch {
	case !secret.Sealed(text):
		return text, nil
	case s.keys == nil:
		return nil, errors.New("it is sealed, and CACHE_KEY_SECRET_FILE is not set")
	}
	return s.keys.Open(text, about)
}

// unreadable says, once a minute at most, that something in the store cannot be read.
func (s *sealedStore) unreadable(what string, err error) {
	if time.Since(s.said) < time.Minute {
		return
	}
	s.said = time.Now()
	s.log.Error("something in the store cannot be read, and is left out: give all replicas the same CACHE_KEY_SECRET_FILE, with the previous secret for a while after a change",
		"what", what, "error", err)
}

// compare finds out whether all replicas have the same secret, by the marks in their names.
func (s *sealedStore) compare(ctx context.Context) {
	names, err := s.markedStore.Replicas(ctx)
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
func (s *sealedStore) report(others []string) {
	if s.part == nil {
		s.part = s.health.Add("cache key secret", true, "")
	}
	if len(others) == 0 {
		s.log.Info("all replicas have the same CACHE_KEY_SECRET_FILE again")
		s.part.Set(true, "")
		return
	}
	const what = "replicas that share this store have another CACHE_KEY_SECRET_FILE, or none: they count apart from this one, so that limits admit more"
	s.log.Error(what+"; give all of them the same file", "replicas", strings.Join(others, ", "))
	s.part.Degrade(what)
}
