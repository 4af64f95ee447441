package admin

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// sessionFor is how long a session lasts.
const sessionFor = 12 * time.Hour

// Client returns a client of the API within this process, which lets in whom access does. What it calls with comes from
// [Access.Resume].
func (s *Service) Client(access Access) adminv1.AdminServiceClient { //nolint:ireturn // as it is generated
	access.Log = s.access.Log
	v := *s
	v.access = access
	return adminv1.NewAdminServiceClient(direct{&v})
}

// Reachable returns why whoever makes a request cannot log in from where they are, with any token.
func (a *Access) Reachable(r *http.Request) error {
	if !a.Guarded() || a.InClear || r.TLS != nil || private(remote(r)) {
		return nil
	}
	return a.inClear()
}

// Login returns a text that stands for a token for a time, for a cookie, if the token is good for looking at least. The text
// says whose token it is, what it is good for and until when, and is signed with the token, but does not hold it: every
// replica with the token accepts it, and none once the token is gone from its file.
func (a *Access) Login(r *http.Request, token string) (text string, ends time.Time, err error) {
	token = strings.TrimSpace(token)
	if _, err := a.Allow(Caller{remote(r), []string{"Bearer " + token}, r.TLS}, false); err != nil {
		return "", time.Time{}, err
	}
	found, full, ok := a.token(token)
	if !ok { // it has just been replaced, or nothing is guarded
		return "", time.Time{}, status.Error(codes.Unauthenticated, refusedToken)
	}
	ends = time.Now().Add(sessionFor)
	says := role(full) + " " + strconv.FormatInt(ends.Unix(), 10) + " " + found.Name
	return encoded([]byte(says)) + "." + encoded(signed(token, says)), ends, nil
}

// Resume returns the context in which whoever made a request calls the API, with the text that a cookie of theirs holds, and
// whether they may change something. It is not ok if they have to log in.
func (a *Access) Resume(r *http.Request, text string) (ctx context.Context, change, ok bool) {
	ctx = peer.NewContext(r.Context(), peerOf(r))
	if !a.Guarded() {
		return ctx, exactlyLocal(remote(r)) && private(a.Listener), true
	}
	if token, full, ok := a.resumed(text); ok {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), full, true
	}
	_, full, ok := a.certificate(r.TLS)
	return ctx, full, ok
}

// resumed returns the token that the text of a cookie stands for, and whether it is good for everything.
func (a *Access) resumed(text string) (token string, full, ok bool) {
	head, tail, _ := strings.Cut(text, ".")
	says, err1 := base64.RawURLEncoding.Strict().DecodeString(head)
	signature, err2 := base64.RawURLEncoding.Strict().DecodeString(tail)
	words := strings.SplitN(string(says), " ", 3)
	if err1 != nil || err2 != nil || len(words) != 3 {
		return "", false, false
	}
	ends, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(ends, 0)) {
		return "", false, false
	}
	full = words[0] == role(true)
	variable, file := "ADMIN_READ_TOKEN_FILE", a.ReadTokenFile
	if full {
		variable, file = "ADMIN_TOKEN_FILE", a.TokenFile
	}
	for _, t := range a.tokens(variable, file) {
		if callerName(t, full) == words[2] && hmac.Equal(signed(t.Text, string(says)), signature) {
			return t.Text, full, true
		}
	}
	return "", false, false
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

// callerName is what the audit calls whoever has a token.
func callerName(t Token, full bool) string {
	if full {
		return cmp.Or(t.Name, "token")
	}
	return cmp.Or(t.Name, "read token")
}
