package console

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/publicip"
)

// session is a browser that was let in.
type session struct {
	Principal string
	Operator  bool   // may change something
	CSRF      string // each form that changes something sends it
	said      string // for the next page; guarded by Console.mu
	expires   time.Time
	streams   atomic.Int64
}

const (
	sessionTime = 12 * time.Hour
	maxSessions = 1000
	// maxFailures is the most failed logins in a minute, of all callers together.
	maxFailures = 30
)

// cookieName returns the name of the session's cookie. It has the port, because browsers send the cookies of
// all ports of a host to each of them.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "foldgate_console_" + port
	}
	return "foldgate_console"
}

// begin lets a browser in with a session.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, s *session) {
	id := rand.Text() + rand.Text()
	s.CSRF = rand.Text()
	c.mu.Lock()
	if len(c.sessions) >= maxSessions {
		for id, s := range c.sessions {
			if time.Now().After(s.expires) || len(c.sessions) >= maxSessions {
				delete(c.sessions, id)
			}
		}
	}
	c.sessions[id] = s
	c.mu.Unlock()
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: id, Path: "/", HttpOnly: true, Secure: r.TLS != nil || !publicip.Loopback(publicip.HostName(r.Host)), SameSite: http.SameSiteStrictMode, MaxAge: int(time.Until(s.expires).Seconds()),
	})
}

// sessionOf returns the session of a request, or nil.
func (c *Console) sessionOf(r *http.Request) *session {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[cookie.Value]
	if s != nil && time.Now().After(s.expires) {
		delete(c.sessions, cookie.Value)
		return nil
	}
	return s
}

// enter shows the button behind the one-time link. A program that only looks at the link does not use it up.
func (c *Console) enter(w http.ResponseWriter, r *http.Request) {
	c.outside(w, r, http.StatusOK, "enter", map[string]any{"Link": r.URL.Path})
}

// admit takes the one-time link for a session.
func (c *Console) admit(w http.ResponseWriter, r *http.Request) {
	right := subtle.ConstantTimeCompare([]byte(r.PathValue("link")), []byte(c.link)) == 1
	c.mu.Lock()
	right = right && !c.linked && c.o.Login == nil
	c.linked = c.linked || right
	c.mu.Unlock()
	if !right {
		c.outside(w, r, http.StatusForbidden, "login", map[string]any{"Error": "This link was used, or it is of another start of the console."})
		return
	}
	c.begin(w, r, &session{Principal: c.o.User + " (local link)", Operator: c.o.Operates, expires: time.Now().Add(sessionTime)})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// login says how to get in.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	c.outside(w, r, http.StatusOK, "login", map[string]any{"Token": c.o.Login != nil})
}

// takeLogin takes a token for a session.
func (c *Console) takeLogin(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, text string) {
		c.outside(w, r, status, "login", map[string]any{"Token": true, "Error": text})
	}
	if c.o.Login == nil {
		c.login(w, r)
		return
	}
	if !c.mayTry() {
		refuse(http.StatusTooManyRequests, "There were too many failed logins: wait a minute.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	account, err := c.o.Login(r.Context(), r.PostFormValue("token"))
	if err != nil {
		c.o.Log.Warn("a login at the console failed", "from", r.RemoteAddr, "err", err)
		c.mu.Lock()
		c.failures = append(c.failures, time.Now())
		c.mu.Unlock()
		refuse(http.StatusForbidden, err.Error())
		return
	}
	s := &session{Principal: account.Principal, Operator: account.Operator, expires: time.Now().Add(sessionTime)}
	if !account.Expires.IsZero() && account.Expires.Before(s.expires) {
		s.expires = account.Expires
	}
	c.o.Log.Info("a login at the console", "principal", s.Principal, "operator", s.Operator)
	c.begin(w, r, s)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// mayTry reports whether a login may be tried.
func (c *Console) mayTry() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = slices.DeleteFunc(c.failures, func(t time.Time) bool { return time.Since(t) > time.Minute })
	return len(c.failures) < maxFailures
}

// logout ends the session.
func (c *Console) logout(r *request) error {
	if err := r.checkForm(); err != nil {
		return err
	}
	if cookie, err := r.Cookie(cookieName(r.Request)); err == nil {
		c.mu.Lock()
		delete(c.sessions, cookie.Value)
		c.mu.Unlock()
	}
	http.SetCookie(r.w, &http.Cookie{Name: cookieName(r.Request), Path: "/", MaxAge: -1})
	http.Redirect(r.w, r.Request, "/login", http.StatusSeeOther)
	return nil
}

// outside shows a page to somebody who is not let in.
func (c *Console) outside(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = c.pages[name].Execute(w, view{"foldgate console", r.URL.Path, nil, "", data}) // the reader is gone
}
