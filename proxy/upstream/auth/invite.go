package auth

import (
	"context"
	"crypto/rand"
	"html"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// inviteLimit is how long the page of an invitation is there.
const inviteLimit = 10 * time.Minute

// Invite returns the URL of a page on this machine that starts the login, for a host that can show it to
// a person: opened in a browser, it leads to the authorization server. Invite makes no request and returns
// at once. There is one page for each login; it is gone when the person has logged in, after 10 minutes, or
// with foldgate. ok is false if no login can mend the error.
func (e *Error) Invite() (at string, ok bool) {
	l := e.login
	if l == nil {
		return "", false
	}
	l.inviting.Lock()
	defer l.inviting.Unlock()
	if p := l.invited; p != nil && p.ctx.Err() == nil && len(union(p.more, e.Scopes)) == len(p.more) {
		return p.at, true
	}
	p := &page{login: l, more: e.Scopes}
	if l.invited != nil {
		p.more = union(l.invited.more, e.Scopes)
		l.invited.end() // its URL asks for too little
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.of.log.Warn("no page to log in", "upstream", l.upstream, "err", err)
		return "", false
	}
	p.ctx, p.end = context.WithTimeout(l.of.lifetime, inviteLimit)
	p.path = "/login/" + rand.Text()
	p.host = listener.Addr().String()
	p.at = "http://" + p.host + p.path
	server := &http.Server{Handler: p, ReadHeaderTimeout: requestTimeout, MaxHeaderBytes: 64 << 10}
	started := l.of.start(func() {
		defer p.logins.Wait()
		context.AfterFunc(p.ctx, func() { _ = server.Close() })
		_ = server.Serve(listener)
		p.end()
	})
	if !started {
		listener.Close()
		p.end()
		return "", false
	}
	l.invited = p
	return p.at, true
}

// page is the page of one invitation. Each visit begins the login anew.
type page struct {
	login          *Login
	more           []string // scopes
	at, host, path string
	ctx            context.Context
	end            context.CancelFunc

	mu     sync.Mutex
	stop   context.CancelFunc // of the login that the last visit began
	logins sync.WaitGroup
}

// ServeHTTP sends the browser to the authorization server.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	plainPage(w.Header())
	if r.Method != http.MethodGet || r.URL.Path != p.path || r.Host != p.host {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	p.mu.Lock()
	if p.stop != nil {
		p.stop()
	}
	ctx, stop := context.WithCancel(p.ctx)
	p.stop = stop
	p.mu.Unlock()
	to, failed := make(chan string, 1), make(chan error, 1)
	p.logins.Go(func() {
		defer stop()
		_, err := p.login.LogIn(ctx, p.more, func(at string) { to <- at })
		switch {
		case err == nil:
			p.login.of.log.Info("somebody has logged in", "upstream", p.login.upstream, "principal", p.login.principal)
			p.end()
		case ctx.Err() == nil:
			p.login.of.log.Warn("a login failed", "upstream", p.login.upstream, "err", err)
		}
		failed <- err
	})
	select {
	case at := <-to:
		http.Redirect(w, r, at, http.StatusFound)
	case err := <-failed:
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<!doctype html><title>foldgate</title><p>foldgate can't log in at "+html.EscapeString(p.login.upstream)+": "+html.EscapeString(err.Error())+"\n")
	}
}

// plainPage sets the headers of a page that has nothing but text.
func plainPage(h http.Header) {
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}
