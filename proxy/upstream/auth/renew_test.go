package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

// rotating is an authorization server, and an upstream that takes its newest token. Each refresh token
// is good for one use.
type rotating struct {
	*httptest.Server
	mu           sync.Mutex
	n, renewals  int
	replayed     int
	refuse       string // the code with which it refuses, "" for none
	hold, atWork chan struct{}
}

func newRotating(t *testing.T) *rotating {
	r := &rotating{hold: make(chan struct{}), atWork: make(chan struct{}, 100)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/token" {
			r.mu.Lock()
			defer r.mu.Unlock()
			if req.Header.Get("Authorization") != fmt.Sprintf("Bearer access-%d", r.n) {
				w.WriteHeader(http.StatusUnauthorized)
			}
			return
		}
		r.atWork <- struct{}{}
		<-r.hold
		r.mu.Lock()
		defer r.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.refuse != "":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":%q,"error_description":"you sent %s"}`, r.refuse, req.FormValue("refresh_token"))
		case req.FormValue("refresh_token") != fmt.Sprintf("refresh-%d", r.n):
			r.replayed++
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
		default:
			r.n++
			r.renewals++
			fmt.Fprintf(w, `{"access_token":"access-%[1]d","refresh_token":"refresh-%[1]d","expires_in":3600}`, r.n)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// process returns the login as another process on the same state directory has it.
func (r *rotating) process(t *testing.T, dir string) *Login {
	c := config.Config{StateDir: dir}
	ls := New(c, slog.New(slog.DiscardHandler))
	t.Cleanup(ls.Close)
	return ls.For("up", &config.Upstream{URL: r.URL + "/mcp", Auth: &config.Auth{AuthorizationCode: &config.AuthorizationCode{}}}, "alice")
}

// stored stores the first login.
func (r *rotating) stored(t *testing.T, l *Login) {
	t.Helper()
	unlock, err := l.of.store.lock(t.Context(), l.file)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	first := &saved{token: token{Access: "access-revoked", Refresh: "refresh-0"}, URL: l.url, Endpoint: r.URL + "/token", ClientID: "x"}
	if err := l.of.store.write(l.file, first); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, l *Login) error {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := l.Do(http.DefaultClient, req)
	if err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("HTTP %d", resp.StatusCode)
		}
	}
	return err
}

// A login without a token, such as after a renewal that was refused, changes no text.
func TestRedact(t *testing.T) {
	const text = "event of access-1"
	for access, want := range map[string]string{"": text, "access-1": "event of [REDACTED:upstream-token]", "access-2": text} {
		l := &Login{}
		l.token.Store(&token{Access: access})
		if got := string(l.Redact([]byte(text))); got != want {
			t.Errorf("token %q: %s", access, got)
		}
	}
	var none *Login
	for _, l := range []*Login{none, {}} {
		if got := string(l.Redact([]byte(text))); got != text {
			t.Errorf("no token: %s", got)
		}
	}
}

// Several processes with one state directory renew one login once.
func TestProcessesRenewOnce(t *testing.T) {
	r, dir := newRotating(t), t.TempDir()
	all := []*Login{r.process(t, dir), r.process(t, dir), r.process(t, dir)}
	r.stored(t, all[0])
	var calls sync.WaitGroup
	for _, l := range all {
		for range 4 {
			calls.Go(func() {
				if err := ask(t, l); err != nil {
					t.Error(err)
				}
			})
		}
	}
	<-r.atWork // one is at it, the others come
	close(r.hold)
	calls.Wait()
	if r.renewals != 1 || r.replayed != 0 {
		t.Errorf("%d renewals, %d with a token that was used, want 1 and 0", r.renewals, r.replayed)
	}
	if err := ask(t, r.process(t, dir)); err != nil { // after a restart
		t.Error(err)
	}
	if r.renewals != 1 {
		t.Errorf("%d renewals after a restart, want 1: the token is stored", r.renewals)
	}
}

// A refusal says whether a person has to log in again. It does not show the refresh token.
func TestRenewalRefused(t *testing.T) {
	for code, want := range map[string]string{
		"invalid_grant": codeRequired, "invalid_client": codeRequired, "unauthorized_client": codeRequired, "server_error": CodeFailed, "temporarily_unavailable": CodeFailed,
	} {
		r := newRotating(t)
		close(r.hold)
		r.refuse = code
		l := r.process(t, t.TempDir())
		r.stored(t, l)
		err := ask(t, l)
		var e *Error
		if !errors.As(err, &e) || e.Code != want || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "refresh-0") {
			t.Errorf("%s: %v, want %s", code, err, want)
		}
		if want == codeRequired && !strings.Contains(err.Error(), "`foldgate login up`") { // one login for all
			t.Errorf("%s: %v, want the command", code, err)
		}
	}
}

// A login that could not be read is read again by the next call.
func TestLoginReadAgain(t *testing.T) {
	r, dir := newRotating(t), t.TempDir()
	close(r.hold)
	r.stored(t, r.process(t, dir))
	l := r.process(t, dir)
	if err := os.Rename(l.of.store.keyFile, l.of.store.keyFile+".away"); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, l); err == nil || !strings.Contains(err.Error(), "logins.key_file") {
		t.Errorf("without the key: %v", err)
	}
	if err := os.Rename(l.of.store.keyFile+".away", l.of.store.keyFile); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, l); err != nil {
		t.Errorf("with the key: %v", err)
	}
}
