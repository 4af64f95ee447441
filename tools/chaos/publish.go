package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// Markers around the results of a page.
const (
	pageBegin = "<!-- results: written by make chaos WRITE=1 -->\n"
	pageEnd   = "<!-- end of results -->"
)

// measurementsName is the name of the file with the measurements, in notes beside the page.
const measurementsName = "chaos-results.md"

// writable returns an error if the results cannot be written to the page. It is called before the checks, which take a quarter of
// an hour.
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

// around returns the text of a page before and after its results.
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

// publish writes the table of results to the page, below the date, the machine, and the versions, and the measurements to the
// note beside it.
func (c *config) publish(ctx context.Context, at time.Time, counts string, all []played) error {
	commit, compiler, err := proc.Built(c.server)
	if err != nil {
		return err
	}
	redis, err := proc.RedisVersion(ctx, c.redis)
	if err != nil {
		return err
	}
	with := fmt.Sprintf("ratelimitd %s, %s, and Redis %s", commit, compiler, redis)
	table := "| check | what happens | passes with | passed |\n| --- | --- | --- | --- |\n"
	if c.peer != "" {
		table = "| check | what happens | passes with | passed | by the other server |\n| --- | --- | --- | --- | --- |\n"
		with += fmt.Sprintf("; the other server is envoyproxy/ratelimit, %s", proc.PeerVersion(c.peer, c.peerVersion))
	}
	var sections strings.Builder
	for i := range all {
		table += all[i].row(c.peer != "")
		sections.WriteString("\n" + all[i].section())
	}
	before, after, err := around(c.page)
	if err != nil {
		return err
	}
	begin := fmt.Sprintf("On %s, on %s, with seed %d,\n%s.\nVersions: %s.\n", at.UTC().Format(time.DateOnly), proc.ThisMachine(), c.seed, counts, with)
	page := fmt.Sprintf("%s%s\n%s\n%s\n%s%s", before, pageBegin, begin, table, pageEnd, after)
	if err := os.WriteFile(c.page, []byte(page), 0o600); err != nil { // it exists and keeps its mode
		return err
	}
	note := "# What the checks measured\n\n<!-- written by make chaos WRITE=1 -->\n\n" + begin +
		"A figure in bold is not met. [reliability.md](../" + filepath.Base(c.page) + ") explains how the checks measure.\n" + sections.String()
	if c.peer != "" {
		note = strings.ReplaceAll(note, c.peer, "the other server") // errors may contain the path
	}
	return os.WriteFile(c.note(), []byte(note), 0o644)
}

// note returns the path of the measurements.
func (c *config) note() string { return filepath.Join(filepath.Dir(c.page), "notes", measurementsName) }
