// Package audit keeps the last acts of operators, in one list that replicas share, and counts by caller how many calls failed in
// this process. An act is of bounded size. A failed call is never an act, so no caller without permission pushes out the acts of
// others. Each change is written to the audit log as well, which forgets none.
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

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// MaxActs is how many acts are kept: the last ones.
const MaxActs = 1000

const (
	maxText   = 720             // bytes of an act as JSON; sealed, in base64, it has 1 KiB at most, and all acts 1 MiB
	pageSize  = 50              // acts written or read in one call: 50 KB
	storeTime = time.Second     // for a call of the store
	retryEach = 2 * time.Second // while the store does not have all acts
	freshFor  = time.Second     // after all pages were read, only the latest one is read again for so long
)

// Act is one change by an operator.
type Act struct {
	ID        string    `json:"id"`   // which no other act has
	Time      time.Time `json:"time"` // to the microsecond
	Method    string    `json:"method"`
	RequestID string    `json:"request_id,omitempty"`
	By        string    `json:"by"`
	From      string    `json:"from"`
	Domain    []byte    `json:"domain,omitempty"` // texts of requests are bytes, since they need not be UTF-8
	// Entries are those of the descriptor that it is about.
	Entries [][2][]byte `json:"entries,omitempty"`
	What    string      `json:"what,omitempty"` // without values of end users, as are Before and After
	Reason  string      `json:"reason,omitempty"`
	Before  string      `json:"before,omitempty"`
	After   string      `json:"after,omitempty"`
	Failed  string      `json:"failed,omitempty"` // the code of the error, if it may have been done all the same; otherwise empty
	Why     string      `json:"why,omitempty"`    // of that error; it may have values of end users
}

// Store keeps the acts of all replicas. Its methods are not called concurrently.
type Store interface {
	// Append adds acts, but for those whose ids are there, and keeps the last most.
	Append(ctx context.Context, ids []string, acts [][]byte, most int) error
	// Page returns at most n acts, in the order in which they were added. It leaves out the latest ones, as many as skip says. One that
	// cannot be read is empty, and logged.
	Page(ctx context.Context, skip, n int) ([][]byte, error)
}

// Log keeps acts. Its methods are safe for concurrent use.
type Log struct {
	store Store // nil if this process keeps them by itself
	log   *slog.Logger

	asking chan struct{} // has an element while no call asks the store; the goroutine that takes it may use the fields below
	shared []Act         // all acts of the store, at the time in read
	read   time.Time

	mu     sync.Mutex
	unread *throttle.Log
	own    []Act // of this process, the latest last
	unsent int   // how many of these, the last ones, the store does not have
	failed failures
}

// New returns a Log without acts. A nil store keeps them in this process; log may not be nil.
func New(store Store, log *slog.Logger) *Log {
	l := &Log{store: store, log: log, asking: make(chan struct{}, 1), unread: throttle.Every(time.Minute), failed: failures{callers: map[string]*Failed{}}}
	l.asking <- struct{}{}
	return l
}

// String names the task.
func (l *Log) String() string { return "audit" }

// Run writes to the store the acts that it does not have yet, until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	ticker := time.NewTicker(retryEach)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			_ = l.flush(ctx) // it is tried again
		}
	}
}

// Add keeps a. It fills in the ID and the Time of a, and cuts its texts where it is too large. It returns when the store has a, or
// cannot be asked: then the store gets it later.
func (l *Log) Add(ctx context.Context, a *Act) {
	a.ID, a.Time = rand.Text()[:16], time.Now().UTC().Truncate(time.Microsecond)
	if err := a.fit(); err != nil { // a time after the year 9999
		l.log.Error("cannot record a change in the audit log", "error", err)
		return
	}
	l.mu.Lock()
	l.own = append(l.own, *a)
	l.own = slices.Delete(l.own, 0, max(0, len(l.own)-MaxActs))
	l.unsent = min(l.unsent+1, len(l.own))
	l.mu.Unlock()
	_ = l.flush(context.WithoutCancel(ctx)) // Run tries again
}

// flush writes to the store the acts that it does not have yet.
func (l *Log) flush(ctx context.Context) error {
	if l.store == nil {
		return nil
	}
	return l.ask(ctx, func(ctx context.Context) error {
		for {
			var ids []string
			var page [][]byte
			l.mu.Lock()
			for _, a := range l.own[len(l.own)-l.unsent:][:min(l.unsent, pageSize)] {
				text, _ := json.Marshal(a) // which fit has tried
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
			l.unsent -= min(l.unsent, len(page)) // those that were dropped since were the first
			l.mu.Unlock()
		}
	})
}

// ask calls f, which may use the store, when no other call does.
func (l *Log) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case <-l.asking:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { l.asking <- struct{}{} }()
	return f(ctx)
}

// Acts returns the acts of all replicas, the latest first. If the store cannot be asked, complete is false, and they are those that
// this process knows.
func (l *Log) Acts(ctx context.Context) (all []Act, complete bool) {
	complete = l.store == nil || l.ask(ctx, func(ctx context.Context) error {
		var err error
		if time.Since(l.read) < freshFor {
			all, err = l.load(ctx, pageSize)
			all = append(all, l.shared...)
		} else if all, err = l.load(ctx, MaxActs); err == nil {
			l.shared, l.read = slices.Clone(all), time.Now()
		}
		return err
	}) == nil
	known := map[string]bool{"": true}              // what cannot be read has no ID
	all = slices.DeleteFunc(all, func(a Act) bool { // also what was sent or read twice
		twice := known[a.ID]
		known[a.ID] = true
		return twice
	})
	l.mu.Lock()
	for _, a := range l.own {
		if !known[a.ID] {
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
				continue // which the store has logged
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

// fit cuts the texts that make a too long as JSON.
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

// cutMark ends a text that was cut.
const cutMark = "…"

// shorten cuts each text of a to most bytes, and its entries to about as much together.
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

// cutText returns the first most bytes of a text, with a mark if there are more. It cuts between characters.
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
