package redis

import (
	"context"
	"strconv"
)

// Audit is a list of acts of operators that all replicas share, beside the counters of the main deployment. It has a connection of
// its own. Its methods must not be called concurrently.
type Audit struct{ aside }

// Audit returns the audit of b. There is none without scripts, with [ReferenceKeys].
func (b *Backend) Audit() (*Audit, error) {
	a, err := b.aside("audit", "audit", ":ids", ":acts")
	if err != nil {
		return nil, err
	}
	return &Audit{a}, nil
}

// Append adds acts, but for those whose ids are there, and keeps the last most. After an error they may have been added.
func (a *Audit) Append(ctx context.Context, ids []string, acts [][]byte, most int) error {
	args := []any{"append", strconv.Itoa(most)}
	for i, act := range acts {
		args = append(args, ids[i], act)
	}
	_, err := a.call(ctx, args...)
	return err
}

// Page returns n acts at most, leaving out as many of the latest as skip says, in the order in which they were added. One that is too large
// is empty.
func (a *Audit) Page(ctx context.Context, skip, n int) ([][]byte, error) {
	reply, err := a.call(ctx, "page", strconv.Itoa(skip), strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	texts, ok := reply.Val().([]any)
	if !ok {
		return nil, errRegisterReply
	}
	acts := make([][]byte, 0, len(texts))
	for _, t := range texts {
		text, _ := t.(string)
		acts = append(acts, []byte(text))
	}
	return acts, nil
}

// Leave closes the connection.
func (a *Audit) Leave() { a.hangUp() }
