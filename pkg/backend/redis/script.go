package redis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"embed"
	"encoding/hex"
	"strings"
)

// files holds the engine in Lua. There is a file for each part that scripts share and for each family of states; a
// script is several of them concatenated.
//
//go:embed scripts/*.lua
var files embed.FS

// script is one script as Redis gets it.
type script struct {
	name string // for logs and metrics
	text string
	sha  string // its SHA-1 in hex, by which EVALSHA calls it
}

// scripts are all the scripts. They are built once and never change.
type scripts struct {
	fixed  *script // one fixed window
	bucket *script // one bucket
	runs   *script // one sliding window or log
	slots  *script // one concurrency limit
	limits *script // a list, or anything behind a penalty
}

// all returns all scripts, in no particular order.
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

// compose concatenates files of scripts/.
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
