package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

// Bounds of a file of tokens, in bytes.
const (
	maxToken  = 4096
	maxTokens = 256 << 10
)

// Token is one of a file.
type Token struct {
	Name string // of its owner; empty if the file is nothing but a token
	Text string

	Domains []string // that it is good for; nil if it is good for all

	sum [sha256.Size]byte // of Text
}

var (
	// named is a line of a file of several tokens.
	named = regexp.MustCompile(`^(` + namePattern + `)(?:\[domains=([^\[\] \t]+)\])?:[ \t]+(\S+)$`)
	// misnamed is a line that is not named, but looks as if it was meant to be: it must not be taken for a token, because
	// what is written before a colon is no secret.
	misnamed = regexp.MustCompile(`:([ \t]|$)`)
	// misdomained is the same for one with domains.
	misdomained = regexp.MustCompile(`^` + namePattern + `\[(domain|.*\]:[ \t])`)
)

const namePattern = `[A-Za-z0-9][A-Za-z0-9._@-]{0,63}`

// byteOrderMark is what editors of Windows put before a text in UTF-8.
const byteOrderMark = "\uFEFF"

// ReadTokens reads a file that has one token, or lines of name: token, or of name[domains=a,b]: token for those that are good for
// these domains alone. White space around them, empty lines, lines that begin
// with # and a byte order mark are no part of them. A file without a token is an error.
func ReadTokens(file string) ([]Token, error) {
	text, err := smallfile.Read(file, maxTokens)
	if err != nil {
		return nil, err
	}
	return tokensOf(file, string(text))
}

// tokensOf returns the tokens of a file with a text. Its errors name the file, and do not repeat the text.
func tokensOf(file, text string) ([]Token, error) {
	all, err := parseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

func parseTokens(text string) (all []Token, err error) {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, errors.New("it is not valid UTF-8: save it as UTF-8 text")
	}
	names, texts, several := map[string]bool{}, map[string]bool{}, 0
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, byteOrderMark)) {
		number++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		several++
		t := Token{Text: line}
		m := named.FindStringSubmatch(line)
		if m != nil {
			t = Token{Name: m[1], Text: m[3]}
			t.Domains, err = domains(m[2])
		}
		switch {
		case err != nil, m == nil && misdomained.MatchString(line):
			return nil, fmt.Errorf("line %d: %w", number, errDomains)
		case t.Name == "" && misnamed.MatchString(line):
			return nil, fmt.Errorf("line %d: write a name, a colon, a space, and a token without whitespace, such as ann: TOKEN; names consist of letters, digits, and . _ @ -", number)
		case len(t.Text) > maxToken:
			return nil, fmt.Errorf("the token on line %d has more than %d bytes", number, maxToken)
		case several > 1 && (t.Name == "" || all[0].Name == ""):
			return nil, fmt.Errorf("line %d: with more than one token, each line must be a name, a colon, a space, and a token, such as ann: TOKEN", number)
		case names[t.Name]:
			return nil, fmt.Errorf("line %d: %s already has a token", number, t.Name)
		case texts[t.Text]:
			return nil, fmt.Errorf("line %d: this token is also listed under a different name, so the audit log could not tell who used it", number)
		}
		names[t.Name], texts[t.Text], t.sum = true, true, sha256.Sum256([]byte(t.Text))
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the file is empty; write a token into it")
	}
	return all, nil
}

// match returns the token that text is. It takes as long whichever that is, and if there is none, and tells nothing about the length of any.
func match(all []Token, text string) (found Token, ok bool) {
	sum := sha256.Sum256([]byte(text))
	for _, t := range all {
		if subtle.ConstantTimeCompare(t.sum[:], sum[:]) == 1 {
			found, ok = t, true
		}
	}
	return found, ok
}

// errDomains says how domains are written behind a name in a file of tokens.
var errDomains = errors.New("the domains of a token follow its name, separated by commas without spaces, such as ann[domains=shop,search]: TOKEN")

// domains returns those of a list in a file of tokens; nil if it is empty.
func domains(list string) (all []string, err error) {
	if list == "" {
		return nil, nil
	}
	all = strings.Split(list, ",")
	for i, d := range all {
		if d == "" || slices.Contains(all[:i], d) {
			return nil, errDomains
		}
	}
	return all, nil
}
