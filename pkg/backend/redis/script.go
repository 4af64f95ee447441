package redis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"embed"
	"encoding/hex"
	"strings"
)

// files holds the engine in Lua. There is a file for each part, and for each family of states; the script is all of them
// concatenated.
//
//go:embed scripts/*.lua
var files embed.FS

// scriptFiles are the files of the script, in order.
const scriptFiles = "head ask muldiv fixed bucket runs blocks slots limits reserve penalty batch"

// aloneFile is that of the script for a common take of a window that has a call to itself.
const aloneFile = "alone"

// script is a script as Redis gets it.
type script struct {
	text string
	sha  string // its SHA-1 in hex, by which EVALSHA calls it
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
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by it
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}
