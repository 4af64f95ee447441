package tenants

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
)

// MaxAtOnce is the maximum number of changes in one [Tenants.Put].
const MaxAtOnce = 500

// Errors of [Tenants.Put].
var (
	ErrFull = fmt.Errorf("the table has %d tenants, the maximum", MaxTenants)
	// ErrNoStore is the error of a change without a store.
	ErrNoStore = errors.New("tenants cannot be changed here: with TENANTS_REDIS=true and BACKEND_TYPE=redis, " +
		"replicas share a table in Redis; to change TENANTS_FILE, edit the file, which is reloaded automatically")
	// ErrStore is wrapped by errors of the store. The change may still have been made.
	ErrStore = errors.New("asking the backend for tenants")
)

// shared is the store's table, as a [replicated.Table].
type shared struct {
	*plans.Table

	event func(Event)

	mu         sync.Mutex
	tombstones map[string]replicated.Entry // of removed tenants by name; their Key is empty
}

func newShared(seed maphash.Seed, event func(Event)) *shared {
	return &shared{Table: plans.NewTable(seed), event: event, tombstones: map[string]replicated.Entry{}}
}

// Entry implements [replicated.Table].
func (s *shared) Entry(name string) replicated.Entry {
	if e, made, ok := s.FindCreated(name); ok {
		return replicated.Entry{Text: textOf(&e), Created: made}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tombstones[name]
}

// Take implements [replicated.Table]. An entry without text is a tombstone, which removes the tenant.
func (s *shared) Take(e *replicated.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tombstones, e.Key)
	if e.Text == "" {
		s.Unset(e.Key)
		s.tombstones[e.Key] = replicated.Entry{Created: e.Created, Expires: e.Expires}
		return nil
	}
	said, err := parseText(e.Text)
	if err = errors.Join(err, ValidateName(e.Key)); err != nil {
		s.Unset(e.Key)
		s.event(Unread)
		return err
	}
	s.Set(e.Key, &said, e.Created)
	return nil
}

// Keys implements [replicated.Table].
func (s *shared) Keys() (names []string) {
	names = s.Names()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.tombstones {
		names = append(names, name)
	}
	return names
}

// Drop implements [replicated.Table].
func (s *shared) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tombstones, name)
	s.Unset(name)
}

// Settle implements [replicated.Table]. It only removes tombstones, because Take has already published its entry.
func (s *shared) Settle(before int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tombstones, func(_ string, e replicated.Entry) bool { return e.Expires < before })
}

// String returns the name of the task.
func (t *Tenants) String() string { return "tenants" }

// Run synchronizes the table with the store until ctx ends.
func (t *Tenants) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-t.register.First():
			if !t.StoreRead() {
				t.log.Warn("the backend does not answer, so its tenants are unknown: each has the plan of TENANTS_FILE, or the default")
				return
			}
			t.log.Info("tenants read from the backend", "tenants", t.Len(plans.Store))
			t.warn()
		case <-ctx.Done():
		}
	}()
	err := t.register.Run(ctx)
	<-done
	return err
}

// Change is a new entry of a tenant.
type Change struct {
	Tenant string
	Entry  *plans.Entry // nil removes the tenant
}

// Put changes at most [MaxAtOnce] tenants in the store, and returns the previous entry of each, or nil. When it returns, the
// changes apply in this process. With dry, it changes nothing.
func (t *Tenants) Put(ctx context.Context, changes []Change, dry bool) (before []*plans.Entry, err error) {
	if t == nil || t.shared == nil {
		return nil, ErrNoStore
	}
	entries, err := entriesOf(changes)
	if err != nil {
		return nil, err
	}
	err = t.register.Put(ctx, func() ([]replicated.Entry, error) {
		before = make([]*plans.Entry, len(changes))
		for i, c := range changes {
			if e, ok := t.shared.Find([]byte(c.Tenant)); ok {
				before[i] = &e
			}
			if c.Entry == nil {
				entries[i].Expires = t.register.Now().Add(replicated.Lasts).UnixMilli()
			}
		}
		if dry {
			return nil, nil
		}
		return entries, nil
	})
	if errors.Is(err, replicated.ErrFull) {
		err = ErrFull
	}
	return before, err
}

// entriesOf converts changes to entries of a register.
func entriesOf(changes []Change) ([]replicated.Entry, error) {
	entries := make([]replicated.Entry, len(changes))
	for i, c := range changes {
		if err := ValidateName(c.Tenant); err != nil {
			return nil, err
		}
		entries[i].Key = c.Tenant
		if c.Entry == nil {
			continue
		}
		if err := Validate(c.Entry); err != nil {
			return nil, err
		}
		entries[i].Text = textOf(c.Entry)
	}
	return entries, nil
}

// textOf returns the text of e in the store: the plan, requests or -, and the end in seconds since the epoch or -.
func textOf(e *plans.Entry) string {
	requests, until := "-", "-"
	if e.Numbered {
		requests = strconv.FormatUint(e.Requests, 10)
	}
	if !e.Until.IsZero() {
		until = strconv.FormatInt(e.Until.Unix(), 10)
	}
	return e.Plan + " " + requests + " " + until
}

var errText = errors.New("must be a plan, requests_per_unit or -, and an end in seconds since 1970 or -")

// parseText parses a text of textOf.
func parseText(text string) (e plans.Entry, err error) {
	words := strings.Split(text, " ")
	if len(words) != 3 {
		return e, errText
	}
	e.Plan = words[0]
	if words[1] != "-" {
		n, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			return e, errText
		}
		e.Requests, e.Numbered = n, true
	}
	if words[2] != "-" {
		n, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil || n <= 0 {
			return e, errText
		}
		e.Until = time.Unix(n, 0)
	}
	return e, Validate(&e)
}
