package redis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"embed"
	"encoding/hex"
	"slices"
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
	single [familyCount]*script // for one limit of each family
	limits *script              // for a list, or anything behind a penalty
}

// all returns all scripts, in no particular order.
func (s *scripts) all() []*script {
	all := []*script{s.limits}
	for _, one := range s.single {
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}

func newScripts() (*scripts, error) {
	var s scripts
	made := map[string]*script{}
	for f := range s.single {
		name, files := family(f).single()
		if made[name] == nil {
			one, err := newScript(name, files)
			if err != nil {
				return nil, err
			}
			made[name] = one
		}
		s.single[f] = made[name]
	}
	var err error
	s.limits, err = newScript("limits", limitsFiles)
	return &s, err
}

func newScript(name, names string) (*script, error) {
	text, err := compose(strings.Fields(names))
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by it
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}, nil
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
