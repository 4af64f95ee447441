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

// cookieName is the name of the cookie of a session.
const cookieName = "ratelimitd_session"

// sessionOf returns what the cookie of a request holds.
func sessionOf(r *http.Request) string {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return ""
	}
	return c.Value
}

// cookie returns the cookie of a session, which scripts cannot read, and which is sent to the console alone.
func cookie(r *http.Request, value string, ends time.Time) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Expires: ends, Path: "/ui", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// maxNext is how long an address may be that a login leads to.
const maxNext = 2048

// local returns an address of a page of the console; that of the overview for any other address, which may come from anyone.
func local(address string) string {
	at, err := url.Parse(address)
	if err != nil || len(address) > maxNext || !strings.HasPrefix(at.Path, Root) || strings.TrimSuffix(at.Path, "/") != path.Clean(at.Path) {
		return Root
	}
	return (&url.URL{Path: at.Path, RawQuery: at.RawQuery}).String()
}

// toLogin leads to the login, the whole page also where a part of it was asked for. It takes a cookie away that stands for nothing, since it
// looks like a guess each time that it comes. From the login one comes back to where one was, or to the descriptor that a form was about.
func toLogin(w http.ResponseWriter, r *http.Request) {
	forget(w, r)
	from, part := r.URL.RequestURI(), partly(r)
	switch {
	case part:
		from = r.Header.Get("HX-Current-URL")
	case r.Method != http.MethodGet:
		from = Root + "controls"
		if p := typed(r); p.Asked {
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

// loginPage is the login.
type loginPage struct {
	Closed bool   // there is none from where the user is
	Next   string // where it leads to
}

func (u *console) showLogin(w http.ResponseWriter, r *http.Request) {
	if _, _, ok := u.Sessions.Resume(r, sessionOf(r)); ok {
		http.Redirect(w, r, local(r.FormValue("next")), http.StatusSeeOther)
		return
	}
	forget(w, r)
	u.askToken(w, r, u.Sessions.Reachable(r))
}

// askToken shows the login, or why there is none.
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

// forget takes the cookie of a session away.
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
