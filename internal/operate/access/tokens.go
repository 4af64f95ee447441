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

// Size limits of a token file in bytes.
const (
	maxToken  = 4096
	maxTokens = 256 << 10
)

// Token is a token of a file.
type Token struct {
	Name string // owner; empty if the file contains only a token
	Text string

	Domains []string // domains that calls may name; nil means all

	sum [sha256.Size]byte // hash of Text
}

var (
	// named matches a line with a name, optional domains, and a token.
	named = regexp.MustCompile(`^(` + namePattern + `)(?:\[domains=([^\[\] \t]+)\])?:[ \t]+(\S+)$`)
	// misnamed matches a malformed line with a name. Such a line must not be used as a token, because the text before the colon
	// is not secret.
	misnamed = regexp.MustCompile(`:([ \t]|$)`)
	// misdomained matches a malformed line with domains.
	misdomained = regexp.MustCompile(`^` + namePattern + `\[(domain|.*\]:[ \t])`)
)

const namePattern = `[A-Za-z0-9][A-Za-z0-9._@-]{0,63}`

// byteOrderMark precedes UTF-8 text of some Windows editors.
const byteOrderMark = "\uFEFF"

// ReadTokens parses a file with one token, or with lines of the form "name: token". "name[domains=a,b]: token" limits a token to
// domains. ReadTokens ignores surrounding white space, empty lines, lines that begin with #, and a byte order mark. A file
// without a token is an error.
func ReadTokens(file string) ([]Token, error) {
	text, err := smallfile.Read(file, maxTokens)
	if err != nil {
		return nil, err
	}
	return tokensOf(file, string(text))
}

// tokensOf parses text, the contents of file. Errors contain the path but not the text.
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

// match finds text among the tokens in constant time. It does not reveal their lengths.
func match(all []Token, text string) (found Token, ok bool) {
	sum := sha256.Sum256([]byte(text))
	for _, t := range all {
		if subtle.ConstantTimeCompare(t.sum[:], sum[:]) == 1 {
			found, ok = t, true
		}
	}
	return found, ok
}

// errDomains explains the syntax of domains.
var errDomains = errors.New("the domains of a token follow its name, separated by commas without spaces, such as ann[domains=shop,search]: TOKEN")

// domains parses a list of domains; nil if it is empty.
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
