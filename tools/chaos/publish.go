package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// The results of a page are between these lines.
const (
	pageBegin = "<!-- results: written by make chaos WRITE=1 -->\n"
	pageEnd   = "<!-- end of results -->"
)

// writable says why results could not be written into the page, before a quarter of an hour is spent on them.
func (c *config) writable() error {
	switch {
	case c.page == "":
		return nil
	case c.soak > 0:
		return errors.New("-write is for the checks, not for -soak")
	}
	f, err := os.OpenFile(c.page, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, _, err = around(c.page)
	return err
}

// around returns what a page has before its results, and after them.
func around(page string) (before, after string, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", "", err
	}
	before, rest, begins := strings.Cut(string(text), pageBegin)
	_, after, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends {
		return "", "", fmt.Errorf("%s has no lines %q and %q, between which the results belong", page, strings.TrimSpace(pageBegin), pageEnd)
	}
	return before, after, nil
}

// publish puts a table of results into the page, after what was measured when, where and with what.
func (c *config) publish(ctx context.Context, at time.Time, counts, table string) error {
	commit, compiler, err := proc.Built(c.server)
	if err != nil {
		return err
	}
	redis, err := proc.RedisVersion(ctx, c.redis)
	if err != nil {
		return err
	}
	with := fmt.Sprintf("ratelimitd %s, %s, and Redis %s", commit, compiler, redis)
	if c.peer != "" {
		table = strings.ReplaceAll(table, c.peer, "the other server") // where an error names it
		with += fmt.Sprintf("; the other server is envoyproxy/ratelimit, %s", proc.PeerVersion(c.peer, c.peerVersion))
	}
	before, after, err := around(c.page)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s%s\nOn %s, on %s, with seed %d,\n%s:\n%s.\n\n%s\n%s%s",
		before, pageBegin, at.UTC().Format(time.DateOnly), proc.ThisMachine(), c.seed, counts, with, table, pageEnd, after)
	return os.WriteFile(c.page, []byte(text), 0o600) // it exists, and keeps its mode
}
