// Package secret derives keys from a file that all replicas share. They prevent readers of the backend from learning the users
// behind its counters: a key for the names of counters, keys for reservation IDs, and a seal that encrypts the texts beside
// counters. [Texts] applies the seal to the audit log and to registers. [Reservations] holds the keys of reservation IDs, also
// without such a file.
//
// This package is part of the process.
package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Size limits of a secret in bytes.
const (
	minSecret = 32
	maxFile   = 16 << 10
)

// Keys are the keys derived from a file. They are safe for concurrent use.
type Keys struct {
	// Reservations are the keys of reservation IDs: the current one, and that of the previous secret, if any.
	Reservations [][]byte
	// Mark identifies the secret. It is the same in all processes with the secret, and reveals nothing else about it.
	Mark string
	// Clear means that texts from before the secret are plaintext and can still be read.
	Clear bool

	counters []byte  // key for the names of counters
	seals    []*seal // of the current secret, and of the previous one, if any
}

// seal holds the keys of one secret for texts.
type seal struct {
	mark  string
	box   cipher.AEAD
	nonce []byte // key for nonces
	name  []byte // key for names
}

// Read reads a file with one secret, or with two as lines current: SECRET and previous: SECRET. previous: clear means that there was no
// secret before. Read ignores surrounding white space, empty lines, and lines that begin with #. Errors do not contain secrets.
func Read(file string) (*Keys, error) {
	text, err := smallfile.Read(file, maxFile)
	if err != nil {
		return nil, err
	}
	current, previous, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return New(current, previous)
}

// label matches the beginning of a line in a file with two secrets.
var label = regexp.MustCompile(`^(current|previous):\s*`)

func parse(text string) (current, previous string, err error) {
	number, plain := 0, 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		to, value := &current, line
		begin := label.FindString(line)
		if begin == "" {
			plain++
		} else if value = line[len(begin):]; strings.HasPrefix(begin, "previous") {
			to = &previous
		}
		switch {
		case *to != "" || plain > 0 && previous != "":
			return "", "", fmt.Errorf("line %d: the file must contain one secret, or the two lines current: SECRET and previous: SECRET", number)
		case begin != "" && strings.ContainsFunc(value, unicode.IsSpace):
			return "", "", fmt.Errorf("line %d: %s must be followed by a secret without whitespace, such as the output of openssl rand -base64 32", number, strings.TrimSpace(begin))
		case len(value) < minSecret && (value != clearText || to != &previous):
			return "", "", fmt.Errorf("line %d: the secret has %d bytes: it must have at least %d, such as the output of openssl rand -base64 32", number, len(value), minSecret)
		}
		*to = value
	}
	switch {
	case current == "" && previous != "":
		return "", "", errors.New("the file has a previous secret but no current one: add a line current: SECRET")
	case current == "":
		return "", "", errors.New("the file is empty; write a secret into it, such as the output of openssl rand -base64 32")
	case current == previous:
		return "", "", errors.New("the previous secret is the same as the current one: remove the previous one")
	}
	return current, previous, nil
}

// clearText as the previous secret means that there was none.
const clearText = "clear"

// New returns the keys of the secret current. If previous is not empty, it is the previous secret, and texts sealed with it can
// be opened. If it is clear, texts were plaintext.
func New(current, previous string) (*Keys, error) {
	now, err := newSeal(current)
	if err != nil {
		return nil, err
	}
	counters, err := derive(current, "counters")
	if err != nil {
		return nil, err
	}
	k := &Keys{counters: counters, Mark: now.mark, Clear: previous == clearText, seals: []*seal{now}}
	if k.Clear {
		previous = ""
	}
	if previous != "" {
		before, err := newSeal(previous)
		if err != nil {
			return nil, err
		}
		k.seals = append(k.seals, before)
	}
	for _, one := range []string{current, previous} {
		if one == "" {
			continue
		}
		key, err := derive(one, "reservations")
		if err != nil {
			return nil, err
		}
		k.Reservations = append(k.Reservations, key)
	}
	return k, nil
}

// CounterNames returns the secret for the names of counters. A nil k returns nil, for plain hashes.
func (k *Keys) CounterNames() *descriptors.Secret {
	if k == nil {
		return nil
	}
	return descriptors.NewSecret(k.counters)
}

// derive returns the key of a secret for one purpose.
func derive(secret, purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, []byte(secret), nil, "ratelimitd "+purpose, 32)
}

func newSeal(secret string) (*seal, error) {
	var keys [4][]byte
	for i, purpose := range []string{"mark", "texts", "nonces", "names"} {
		var err error
		if keys[i], err = derive(secret, purpose); err != nil {
			return nil, err
		}
	}
	block, err := aes.NewCipher(keys[1])
	if err != nil {
		return nil, err
	}
	box, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &seal{mark: hex.EncodeToString(keys[0][:4]), box: box, nonce: keys[2], name: keys[3]}, nil
}

// prefix is the prefix of sealed texts. Plaintext texts never begin with it.
const prefix = "sealed:"

// Sealed reports whether a text is sealed, with any secret.
func Sealed(text []byte) bool { return bytes.HasPrefix(text, []byte(prefix)) }

// Seal encrypts and authenticates text. The result is printable and deterministic, so storing a text twice stores it once. about
// is authenticated but not included; Open requires the same value.
func (k *Keys) Seal(text []byte, about string) []byte { return k.seals[0].seal(text, about) }

func (s *seal) seal(text []byte, about string) []byte {
	nonce := s.mac(s.nonce, about, text)[:s.box.NonceSize()]
	whole := s.box.Seal(nonce, nonce, text, []byte(about))
	return base64.RawStdEncoding.AppendEncode([]byte(prefix+s.mark+":"), whole)
}

// Errors of [Keys.Open].
var (
	ErrOther   = errors.New("it was sealed with a different secret")
	ErrSpoiled = errors.New("it was changed after it was sealed")
)

// Open decrypts a text of [Keys.Seal]. Errors are [ErrOther] and [ErrSpoiled].
func (k *Keys) Open(sealed []byte, about string) ([]byte, error) {
	mark, body, _ := bytes.Cut(bytes.TrimPrefix(sealed, []byte(prefix)), []byte(":"))
	for _, s := range k.seals {
		if s.mark != string(mark) {
			continue
		}
		whole, err := base64.RawStdEncoding.AppendDecode(nil, body)
		if size := s.box.NonceSize(); err == nil && len(whole) > size {
			if text, err := s.box.Open(nil, whole[:size], whole[size:], []byte(about)); err == nil {
				return text, nil
			}
		}
		return nil, ErrSpoiled
	}
	return nil, ErrOther
}

// Names returns the hidden names for a name, 16 hexadecimal digits each: by the current secret and by the previous one, if
// any. If the previous names were plaintext, the last one is the name itself.
func (k *Keys) Names(of string) (names []string) {
	for _, s := range k.seals {
		names = append(names, hex.EncodeToString(s.mac(s.name, of, nil)[:8]))
	}
	if k.Clear {
		names = append(names, of)
	}
	return names
}

// mac returns an HMAC of two texts.
func (s *seal) mac(key []byte, about string, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(h, "%d:%s", len(about), about) // a hash never fails
	h.Write(text)
	return h.Sum(nil)
}
