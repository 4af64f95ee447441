package console

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// cookieName is the name of the session cookie.
const cookieName = "ratelimitd_session"

// sessionOf returns the value of the session cookie.
func sessionOf(r *http.Request) string {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return ""
	}
	return c.Value
}

// cookie returns a session cookie that scripts cannot read and that is sent only to the console.
func cookie(r *http.Request, value string, ends time.Time) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Expires: ends, Path: "/ui", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// maxNext is the maximum length in bytes of the address after a login.
const maxNext = 2048

// local returns address if it is a page of the console, or else the overview's. The address may come from anyone.
func local(address string) string {
	at, err := url.Parse(address)
	if err != nil || len(address) > maxNext || !strings.HasPrefix(at.Path, Root) || strings.TrimSuffix(at.Path, "/") != path.Clean(at.Path) {
		return Root
	}
	return (&url.URL{Path: at.Path, RawQuery: at.RawQuery}).String()
}

// toLogin redirects to the login, also if htmx requests a part of a page. It deletes an invalid session cookie, which would otherwise
// count as a guess with each request. After the login, the user returns to the previous page or, from a form, to its descriptor.
func toLogin(w http.ResponseWriter, r *http.Request) {
	forget(w, r)
	from, part := r.URL.RequestURI(), partly(r)
	switch {
	case part:
		from = r.Header.Get("HX-Current-URL")
	case r.Method != http.MethodGet:
		from = Root + "controls"
		if p := typed(r); p.Requested {
			from = descriptorURL(Root+"descriptor", p.Domain, p.Entries)
		}
	}
	to := Root + "login"
	if from = local(from); from != Root {
		to += "?" + url.Values{"next": {from}}.Encode()
	}
	if part {
		w.Header().Set("HX-Redirect", to)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// loginPage is the login page.
type loginPage struct {
	Closed bool   // users at this address cannot log in
	Next   string // the address after the login
}

func (u *console) showLogin(w http.ResponseWriter, r *http.Request) {
	if _, _, ok := u.Sessions.Resume(r, sessionOf(r)); ok {
		http.Redirect(w, r, local(r.FormValue("next")), http.StatusSeeOther)
		return
	}
	forget(w, r)
	u.askToken(w, r, u.Sessions.Reachable(r))
}

// askToken shows the login page, or the reason why there is no login.
func (u *console) askToken(w http.ResponseWriter, r *http.Request, err error) {
	v := view{Page: "login", Title: "Log in", Body: loginPage{status.Code(err) == codes.PermissionDenied, local(r.FormValue("next"))}}
	code := http.StatusOK
	if s := status.Convert(err); s.Code() != codes.OK {
		v.Error, code = s.Message(), runtime.HTTPStatusFromCode(s.Code())
	}
	if status.Code(err) == codes.Unauthenticated {
		code = http.StatusUnauthorized
		v.Error = "Wrong token. Check that it is complete and still in the file of ADMIN_TOKEN_FILE or ADMIN_READ_TOKEN_FILE."
	}
	u.render(w, code, v, func() {})
}

func (u *console) login(w http.ResponseWriter, r *http.Request) {
	text, ends, err := u.Sessions.Login(r, r.PostFormValue("token"))
	if err != nil {
		u.askToken(w, r, err)
		return
	}
	http.SetCookie(w, cookie(r, text, ends))
	http.Redirect(w, r, local(r.FormValue("next")), http.StatusSeeOther)
}

// forget deletes the session cookie.
func forget(w http.ResponseWriter, r *http.Request) {
	if sessionOf(r) == "" {
		return
	}
	gone := cookie(r, "", time.Unix(1, 0))
	gone.MaxAge = -1
	http.SetCookie(w, gone)
}

func (u *console) logout(w http.ResponseWriter, r *http.Request) {
	forget(w, r)
	http.Redirect(w, r, Root+"login", http.StatusSeeOther)
}
