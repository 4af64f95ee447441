// Package audit keeps the latest acts of operators, in one list that replicas share, and counts failed calls by caller in this
// process. The size of an act is bounded. Failed calls are not acts, so a caller without permission cannot displace the acts of
// others. The audit log also receives each change, and keeps all.
//
// This package is optional: the core works without it.
package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// MaxActs is the number of acts kept.
const MaxActs = 1000

const (
	maxText   = 720             // bytes of an act as JSON; sealed and in base64, an act takes at most 1 KiB, and all acts 1 MiB
	pageSize  = 50              // acts written or read in one call: 50 KB
	storeTime = time.Second     // timeout of a call to the store
	retryEach = 2 * time.Second // while the store lacks acts
	freshFor  = time.Second     // for this long after all pages were read, only the latest page is read again
)

// Act is one change by an operator.
type Act struct {
	ID        string    `json:"id"`   // unique
	Time      time.Time `json:"time"` // in UTC, with microseconds
	Method    string    `json:"method"`
	RequestID string    `json:"request_id,omitempty"`
	By        string    `json:"by"`
	From      string    `json:"from"`
	Domain    []byte    `json:"domain,omitempty"` // bytes, because texts of requests need not be UTF-8
	// Entries are the entries of the descriptor, if any.
	Entries [][2][]byte `json:"entries,omitempty"`
	What    string      `json:"what,omitempty"` // without values of end users, as in Before and After
	Reason  string      `json:"reason,omitempty"`
	Before  string      `json:"before,omitempty"`
	After   string      `json:"after,omitempty"`
	Failed  string      `json:"failed,omitempty"` // the error's code, if the change may still have happened; otherwise empty
	Why     string      `json:"why,omitempty"`    // the error's text, which may contain values of end users
}

// Store keeps the acts of all replicas. Its methods are not called concurrently.
type Store interface {
	// Append adds the acts whose ids are not stored yet, and keeps only the last most acts.
	Append(ctx context.Context, ids []string, acts [][]byte, most int) error
	// Page returns at most n acts, oldest first, without the latest skip acts. An unreadable act is logged and returned as empty.
	Page(ctx context.Context, skip, n int) ([][]byte, error)
}

// Log keeps acts. Its methods are safe for concurrent use.
type Log struct {
	store Store // nil keeps acts only in this process
	log   *slog.Logger

	turn   chan struct{} // full while the store and the fields below are in use
	shared []Act         // all acts of the store, as of read
	read   time.Time

	mu     sync.Mutex
	unread *throttle.Log
	own    []Act // of this process, oldest first
	unsent int   // number of acts at the end of own that the store lacks
	failed failures
}

// New returns a Log without acts. A nil store keeps them in this process; log may not be nil.
func New(store Store, log *slog.Logger) *Log {
	return &Log{store: store, log: log, turn: make(chan struct{}, 1), unread: throttle.Every(time.Minute), failed: failures{callers: map[string]*Failed{}}}
}

// String returns the name of the task.
func (l *Log) String() string { return "audit" }

// Run writes acts that the store lacks until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	return task.Every(l.String(), retryEach, func(ctx context.Context) {
		_ = l.flush(ctx) // retried at the next tick
	}).Run(ctx)
}

// Add records a. It sets the ID and the Time of a, and shortens its texts if a is too large. It returns after the store has a; if
// the store fails, Run retries later.
func (l *Log) Add(ctx context.Context, a *Act) {
	a.ID, a.Time = rand.Text()[:16], time.Now().UTC().Truncate(time.Microsecond)
	if err := a.fit(); err != nil { // the year is after 9999
		l.log.Error("cannot record a change in the audit log", "error", err)
		return
	}
	l.mu.Lock()
	l.own = append(l.own, *a)
	l.own = slices.Delete(l.own, 0, max(0, len(l.own)-MaxActs))
	l.unsent = min(l.unsent+1, len(l.own))
	l.mu.Unlock()
	_ = l.flush(context.WithoutCancel(ctx)) // Run retries
}

// flush writes the acts that the store lacks.
func (l *Log) flush(ctx context.Context) error {
	if l.store == nil {
		return nil
	}
	return l.withStore(ctx, func(ctx context.Context) error {
		for {
			var ids []string
			var page [][]byte
			l.mu.Lock()
			for _, a := range l.own[len(l.own)-l.unsent:][:min(l.unsent, pageSize)] {
				text, _ := json.Marshal(a) // fit has already marshaled it
				ids, page = append(ids, a.ID), append(page, text)
			}
			l.mu.Unlock()
			if len(page) == 0 {
				return nil
			}
			if err := l.store.Append(ctx, ids, page, MaxActs); err != nil {
				return err
			}
			l.mu.Lock()
			l.unsent -= min(l.unsent, len(page)) // acts dropped in the meantime were the oldest
			l.mu.Unlock()
		}
	})
}

// withStore calls f while nothing else uses the store.
func (l *Log) withStore(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	return f(ctx)
}

// Acts returns the acts of all replicas, latest first. If the store fails, complete is false, and all has the acts that this
// process knows.
func (l *Log) Acts(ctx context.Context) (all []Act, complete bool) {
	complete = l.store == nil || l.withStore(ctx, func(ctx context.Context) error {
		var err error
		if time.Since(l.read) < freshFor {
			all, err = l.load(ctx, pageSize)
			all = append(all, l.shared...)
		} else if all, err = l.load(ctx, MaxActs); err == nil {
			l.shared, l.read = slices.Clone(all), time.Now()
		}
		return err
	}) == nil
	seen := map[string]bool{"": true}               // unreadable acts have no ID
	all = slices.DeleteFunc(all, func(a Act) bool { // also duplicates, sent or read twice
		twice := seen[a.ID]
		seen[a.ID] = true
		return twice
	})
	l.mu.Lock()
	for _, a := range l.own {
		if !seen[a.ID] {
			all = append(all, a)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b Act) int { return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.ID, a.ID)) })
	return all[:min(len(all), MaxActs)], complete
}

// load reads the latest n acts of the store.
func (l *Log) load(ctx context.Context, n int) (all []Act, err error) {
	for skip := 0; skip < n; skip += pageSize {
		page, err := l.store.Page(ctx, skip, pageSize)
		if err != nil {
			return all, err
		}
		for _, text := range page {
			var a Act
			if len(text) == 0 {
				continue // the store has logged it
			}
			if err := json.Unmarshal(text, &a); err == nil {
				all = append(all, a)
			} else {
				l.unread.Through(l.log, "").Warn("an audit entry cannot be read and is skipped", "error", err)
			}
		}
		if len(page) < pageSize {
			break
		}
	}
	return all, nil
}

// fit shortens texts until a is small enough as JSON.
func (a *Act) fit() error {
	a.Entries = slices.Clone(a.Entries)
	for most := maxText; ; most /= 2 {
		text, err := json.Marshal(a)
		if err != nil || len(text) <= maxText || most == 0 {
			return err
		}
		a.shorten(most)
	}
}

// cutMark marks the end of a shortened text.
const cutMark = "…"

// shorten cuts each text of a to most bytes, and its entries to about most bytes in total.
func (a *Act) shorten(most int) {
	for _, text := range []*string{&a.RequestID, &a.By, &a.From, &a.What, &a.Reason, &a.Before, &a.After, &a.Why} {
		*text = cutText(*text, most)
	}
	a.Domain = []byte(cutText(string(a.Domain), most))
	room := most
	for i, e := range a.Entries {
		key, value := cutText(string(e[0]), most/4), cutText(string(e[1]), most/4)
		if room -= len(key) + len(value) + len(`["",""],`); room < 0 {
			a.Entries = append(a.Entries[:i], [2][]byte{[]byte(cutMark), nil})
			return
		}
		a.Entries[i] = [2][]byte{[]byte(key), []byte(value)}
	}
}

// cutText returns at most most bytes of a text, cut between characters, plus a mark if it was longer.
func cutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	n := max(0, most-len(cutMark))
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + cutMark
}
