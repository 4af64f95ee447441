package redis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"embed"
	"encoding/hex"
	"strings"
)

// files holds the engine in Lua. What all scripts have in common, and each family of states, is a file of its own; a
// script is some of them, one after the other.
//
//go:embed scripts/*.lua
var files embed.FS

// script is one script as Redis gets it.
type script struct {
	name string // for logs and metrics
	text string
	sha  string // its SHA-1 in hex, by which EVALSHA calls it
}

// scripts are all that ops need. They are made once and never change.
type scripts struct {
	fixed  *script // one fixed window
	bucket *script // one bucket
	runs   *script // one sliding window or log
	slots  *script // one limit of concurrency
	limits *script // a list, or anything behind a penalty
}

// all are the scripts in no particular order, to be loaded.
func (s *scripts) all() []*script {
	return []*script{s.fixed, s.bucket, s.runs, s.slots, s.limits}
}

func newScripts() (*scripts, error) {
	var s scripts
	for _, c := range []struct {
		script **script
		name   string
		files  string
	}{
		{&s.fixed, "fixed", "head quick_fixed ask fixed single"},
		{&s.bucket, "bucket", "head quick_bucket muldiv ask bucket single"},
		{&s.runs, "runs", "head muldiv ask runs single"},
		{&s.slots, "slots", "head ask slots single"},
		{&s.limits, "limits", "head muldiv ask fixed bucket runs slots limits penalty"},
	} {
		text, err := compose(strings.Fields(c.files))
		if err != nil {
			return nil, err
		}
		sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by it
		*c.script = &script{name: c.name, text: text, sha: hex.EncodeToString(sum[:])}
	}
	return &s, nil
}

// compose joins files of scripts/.
func compose(names []string) (string, error) {
	var b strings.Builder
	for _, name := range names {
		part, err := files.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			return "", err
		}
		b.Write(part)
	}
	return b.String(), nil
}
