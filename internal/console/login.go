package console

import (
	"net/http"
	"time"

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

// toLogin leads to the login, the whole page also where a part of it was asked for. It takes a cookie away that stands for nothing, since it
// looks like a guess each time that it comes.
func toLogin(w http.ResponseWriter, r *http.Request) {
	forget(w, r)
	if r.Header.Get("HX-Request") != "" {
		w.Header().Set("HX-Redirect", Root+"login")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(w, r, Root+"login", http.StatusSeeOther)
}

func (u *console) showLogin(w http.ResponseWriter, r *http.Request) {
	if _, _, ok := u.Sessions.Resume(r, sessionOf(r)); ok {
		http.Redirect(w, r, Root, http.StatusSeeOther)
		return
	}
	forget(w, r)
	u.loginPage(w, u.Sessions.Reachable(r))
}

// loginPage shows the login, or why there is none.
func (u *console) loginPage(w http.ResponseWriter, err error) {
	v := view{Page: "login", Title: "Log in"}
	code := http.StatusOK
	if s := status.Convert(err); s.Code() != codes.OK {
		v.Error, v.Body, code = s.Message(), s.Code() == codes.PermissionDenied, httpStatus(s.Code())
	}
	if status.Code(err) == codes.Unauthenticated {
		code = http.StatusUnauthorized
		v.Error = "The token is wrong. Is it complete, and is it still in the file of ADMIN_TOKEN_FILE or ADMIN_READ_TOKEN_FILE?"
	}
	u.render(w, code, v, func() {})
}

func (u *console) login(w http.ResponseWriter, r *http.Request) {
	text, ends, err := u.Sessions.Login(r, r.PostFormValue("token"))
	if err != nil {
		u.loginPage(w, err)
		return
	}
	http.SetCookie(w, cookie(r, text, ends))
	http.Redirect(w, r, Root, http.StatusSeeOther)
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
