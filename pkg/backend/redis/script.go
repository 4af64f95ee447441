package redis

import (
	"crypto/sha1" //nolint:gosec // Redis identifies scripts by SHA-1
	"embed"
	"encoding/hex"
	"strings"
)

// files contains the engine in Lua, with one file per part and per family of states. The script is their concatenation.
//
//go:embed scripts/*.lua
var files embed.FS

// scriptFiles lists the files of the general script in order.
const scriptFiles = "head ask muldiv fixed bucket runs blocks slots limits reserve penalty batch"

// aloneFile is the file of the script for a single common take of a window.
const aloneFile = "alone"

// script is a script in the form sent to Redis.
type script struct {
	text string
	sha  string // SHA-1 in hex, for EVALSHA
}

// newScript concatenates files of scripts/.
func newScript(names string) (*script, error) {
	var b strings.Builder
	for name := range strings.FieldsSeq(names) {
		part, err := files.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			return nil, err
		}
		b.Write(part)
	}
	return scriptOf(b.String()), nil
}

func scriptOf(text string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis identifies scripts by SHA-1
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}
