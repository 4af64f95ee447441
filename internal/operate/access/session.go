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

// sessionFor is how long a session lasts.
const sessionFor = 12 * time.Hour

// Reachable returns why the sender of a request cannot log in from where it is, with any token.
func (p *Policy) Reachable(r *http.Request) error {
	if !p.Guarded() {
		return nil
	}
	return p.overheard(Caller{From: remote(r), TLS: r.TLS})
}

// Login returns a text that stands for a token for a time, for a cookie, if the token is good for looking at least. The text
// says whose token it is, what it is good for and until when, and is signed with the token, but does not hold it: every
// replica with the token accepts it, and none once the token is gone from its file.
func (p *Policy) Login(r *http.Request, token string) (text string, ends time.Time, err error) {
	token = strings.TrimSpace(token)
	if _, err := p.Allow(Caller{From: remote(r), Authorization: []string{"Bearer " + token}, TLS: r.TLS}, false); err != nil {
		return "", time.Time{}, err
	}
	found, full, ok := p.token(token)
	if !ok { // it has just been replaced, or nothing is guarded
		return "", time.Time{}, errWrongToken
	}
	ends = time.Now().Add(sessionFor)
	says := role(full) + " " + strconv.FormatInt(ends.Unix(), 10) + " " + found.Name
	return encoded([]byte(says)) + "." + encoded(signed(token, says)), ends, nil
}

// Resume returns the context in which the sender of a request calls the API, with the text that its cookie holds, and
// whether they may change something. It is not ok if they have to log in.
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

// errSession is why a session that has ended is not taken.
var errSession = errors.New("the session has ended: log in again")

// session returns the token that the text of a caller's cookie stands for, and whether it is good for everything. A text that no token
// has signed is a guess as a wrong token is. One that has ended is none, but it is found to have ended only after the guard's judgement, or
// a guesser could tell by that.
func (p *Policy) session(c Caller, text string) (token string, full bool, err error) {
	var ends time.Time
	if err = p.overheard(c); err == nil {
		token, full, ends = p.resumed(text)
		err = p.Guard.judge(c.From, token)
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

// resumed returns the token that has signed the text of a cookie, whether it is good for everything, and when the session ends. Without
// such a token it is empty.
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

// role is what a token is good for.
func role(full bool) string {
	if full {
		return "change"
	}
	return "look"
}

// signed signs what a cookie says with a token.
func signed(token, says string) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("ratelimitd session\x00" + says))
	return mac.Sum(nil)
}

// callerName is what the audit calls the owner of a token.
func callerName(t Token, full bool) string {
	if full {
		return cmp.Or(t.Name, "token")
	}
	return cmp.Or(t.Name, "read token")
}
