package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// sessionFor is the lifetime of a session.
const sessionFor = 12 * time.Hour

// Reachable returns an error if no token from the sender's address can be accepted.
func (p *Policy) Reachable(r *http.Request) error {
	if !p.Guarded() {
		return nil
	}
	return p.overheard(Caller{From: remote(r), TLS: r.TLS})
}

// Login returns the text of a session cookie for a valid token, and its expiry. The text has the caller's name, its role, and the
// expiry, signed with the token, but not the token itself. Every replica with the token accepts the text until the token is
// removed from its file.
func (p *Policy) Login(r *http.Request, token string) (text string, ends time.Time, err error) {
	token = strings.TrimSpace(token)
	if _, err := p.Allow(Caller{From: remote(r), Authorization: []string{"Bearer " + token}, TLS: r.TLS}, false); err != nil {
		return "", time.Time{}, err
	}
	found, full, ok := p.token(token)
	if !ok { // replaced just now, or no authentication is configured
		return "", time.Time{}, errWrongToken
	}
	ends = time.Now().Add(sessionFor)
	says := role(full) + " " + strconv.FormatInt(ends.Unix(), 10) + " " + found.Name
	return encoded([]byte(says)) + "." + encoded(signed(token, says)), ends, nil
}

// Resume returns the context for API calls of a request with the session text of its cookie, and whether the caller may make
// changes. ok is false if the caller has to log in.
func (p *Policy) Resume(r *http.Request, text string) (ctx context.Context, change, ok bool) {
	ctx = peer.NewContext(r.Context(), PeerOf(r))
	if !p.Guarded() {
		return ctx, false, true
	}
	if text != "" {
		token, full, err := p.session(Caller{From: remote(r), TLS: r.TLS}, text)
		if err == nil {
			return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), full, true
		}
	}
	_, full, ok := p.certificate(r.TLS)
	return ctx, full, ok
}

// errSession is the error for an expired session.
var errSession = errors.New("the session has ended: log in again")

// session returns the token that signed the text of a cookie, and whether it has all permissions. An unsigned text counts as a
// guess. The expiry is checked after the guard, so that a guesser cannot distinguish expired from forged sessions.
func (p *Policy) session(c Caller, text string) (token string, full bool, err error) {
	var ends time.Time
	if err = p.overheard(c); err == nil {
		token, full, ends = p.resumed(text)
		err = p.Guard.checkGuess(c.From, token)
	}
	if err != nil {
		p.Guard.Denied()
		return "", false, err
	}
	if !time.Now().Before(ends) {
		return "", false, errSession
	}
	return token, full, nil
}

// resumed returns the token that signed the text of a cookie, whether it has all permissions, and when the session ends. The
// token is empty if none signed it.
func (p *Policy) resumed(text string) (token string, full bool, ends time.Time) {
	head, tail, _ := strings.Cut(text, ".")
	says, err1 := base64.RawURLEncoding.Strict().DecodeString(head)
	signature, err2 := base64.RawURLEncoding.Strict().DecodeString(tail)
	words := strings.SplitN(string(says), " ", 3)
	if err1 != nil || err2 != nil || len(words) != 3 {
		return "", false, ends
	}
	seconds, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return "", false, ends
	}
	full = words[0] == role(true)
	for _, t := range p.tokens(full) {
		if callerName(t, full) == words[2] && hmac.Equal(signed(t.Text, string(says)), signature) {
			return t.Text, full, time.Unix(seconds, 0)
		}
	}
	return "", false, ends
}

func encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// role returns the role of a token in a session.
func role(full bool) string {
	if full {
		return "change"
	}
	return "look"
}

// signed returns the signature of a session's text.
func signed(token, says string) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("ratelimitd session\x00" + says))
	return mac.Sum(nil)
}

// callerName returns the name of a token's owner in the audit log.
func callerName(t Token, full bool) string {
	if full {
		return cmp.Or(t.Name, "token")
	}
	return cmp.Or(t.Name, "read token")
}
