package audit

import (
	"context"
	_ "embed"
	"strconv"
)

// Script stores acts in Redis.
//
//go:embed audit.lua
var Script string

// SideChannel runs [Script]; see SideChannel of pkg/backend/redis.
type SideChannel interface {
	Call(ctx context.Context, keys []string, args ...any) ([]any, error)
}

// ScriptStore is a [Store] in Redis.
type ScriptStore struct{ SideChannel }

func (s ScriptStore) call(ctx context.Context, args ...any) ([]any, error) {
	return s.Call(ctx, []string{":ids", ":acts"}, args...)
}

// Append implements [Store]. After an error, the acts may still have been added.
func (s ScriptStore) Append(ctx context.Context, ids []string, acts [][]byte, most int) error {
	args := []any{"append", strconv.Itoa(most)}
	for i, act := range acts {
		args = append(args, ids[i], act)
	}
	_, err := s.call(ctx, args...)
	return err
}

// Page implements [Store]. An act of excessive size is empty.
func (s ScriptStore) Page(ctx context.Context, skip, n int) ([][]byte, error) {
	reply, err := s.call(ctx, "page", strconv.Itoa(skip), strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	acts := make([][]byte, 0, len(reply))
	for _, t := range reply {
		text, _ := t.(string)
		acts = append(acts, []byte(text))
	}
	return acts, nil
}
