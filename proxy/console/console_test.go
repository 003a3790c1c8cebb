package console

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/test/recorded"
)

// visitor is a browser that was let in.
type visitor struct {
	t      testing.TB
	c      *Console
	cookie *http.Cookie
}

// visit opens a console on a journal, ready unless building is set, and takes its one-time link.
func visit(t testing.TB, dir string, building bool, change func(*Options)) *visitor {
	t.Helper()
	o := Options{Dirs: []string{dir}, Log: slog.New(slog.DiscardHandler), User: "eve", Operates: true}
	o.Shown = func(server, tool string) string { return server + "__" + tool }
	if change != nil {
		change(&o)
	}
	c, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if !building {
		if err := c.trace.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.ready = true
	}
	v := &visitor{t: t, c: c}
	res := v.ask(http.MethodPost, c.Link(), "")
	if len(res.Result().Cookies()) != 1 {
		t.Fatalf("the link: %d", res.Code)
	}
	v.cookie = res.Result().Cookies()[0]
	return v
}

func (v *visitor) ask(method, address, form string) *httptest.ResponseRecorder {
	v.t.Helper()
	path, rawQuery, _ := strings.Cut(address, "?")
	r := httptest.NewRequest(method, path, strings.NewReader(form))
	r.URL.RawQuery, r.Host = rawQuery, "127.0.0.1:8788"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if v.cookie != nil {
		r.AddCookie(v.cookie)
	}
	w := httptest.NewRecorder()
	v.c.ServeHTTP(w, r)
	return w
}

// page returns a page, which must have a status.
func (v *visitor) page(address string, status int) string {
	v.t.Helper()
	w := v.ask(http.MethodGet, address, "")
	if w.Code != status {
		v.t.Errorf("%s: %d, want %d: %.600s", address, w.Code, status, w.Body)
	}
	return w.Body.String()
}

// journal writes records to a new journal, and returns its directory.
func journal(t testing.TB, records ...*trace.Record) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "trace")
	j, err := trace.Open(dir, trace.Options{Sync: trace.SyncNever})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

var pushed = time.Date(2026, 11, 1, 15, 30, 0, 0, time.UTC)

func push(path string, at time.Time) *trace.Record {
	return &trace.Record{TS: at.Format(trace.TimeFormat), From: "foldgate", Kind: trace.KindPush, Context: path, Audit: &trace.Audit{Principal: "alice", Tokens: &trace.Tokens{Budget: 10}},
		Payload: rawjson.Marshal(map[string]string{"description": "task"})}
}

// TestBranchFarInTree: each branch of a tree has a page, also beyond those that the page of the tree shows.
func TestBranchFarInTree(t *testing.T) {
	all := []*trace.Record{push("br_root", pushed)}
	for i := range maxTree + 20 {
		all = append(all, push(fmt.Sprintf("br_root/br_%04d", i), pushed))
	}
	v := visit(t, journal(t, all...), false, nil)
	first := v.page("/branch?path=br_root", http.StatusOK)
	if !strings.Contains(first, "Only 500 branches are shown") || !strings.Contains(first, "br_0498") || strings.Contains(first, "br_0499") {
		t.Error("the page of the tree does not say that it is cut")
	}
	far := v.page("/branch?path=br_root/br_0515", http.StatusOK)
	if !strings.Contains(far, "br_0515") || strings.Contains(far, "br_0514") || !strings.Contains(far, "The beginning of the whole tree") {
		t.Error("the page of a far branch does not have its own tree")
	}
	v.page("/branch?path=br_root/br_9999", http.StatusNotFound)
}

// TestWholeDays: a month and a year begin with a day, since their bars are days.
func TestWholeDays(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed), push("br_b", pushed.Add(20*day))), false, nil)
	for _, of := range []string{"month", "year"} {
		page := v.page("/?span="+of, http.StatusOK)
		if span := regexp.MustCompile(`.* to .* UTC`).FindString(page); !regexp.MustCompile(` 00:00:00 to .* 00:00:00 UTC`).MatchString(span) {
			t.Errorf("the %s is %s", of, span)
		}
	}
}

// TestAddresses: an address with a name or value that its page does not know is refused. The page would show, and
// the export would have, what the filter leaves out.
func TestAddresses(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), false, nil)
	for address, said := range map[string]string{
		"/calls?principle=alice":           "&#34;principle&#34; is not a name that the address of this page has: use principal, team, ",
		"/calls?depth=two":                 "depth: &#34;two&#34; is not a number",
		"/calls?depth=9999999999999999999": "depth: &#34;9999999999999999999&#34; is out of range",
		"/calls?blocked=maybe":             "blocked: &#34;maybe&#34; is neither true nor false",
		"/calls?page=2":                    "&#34;page&#34; is not a name",
		"/export?principle=alice":          "&#34;principle&#34; is not a name",
		"/export?principal=al;ice":         "the address is malformed",
		"/calls?principal=alice%":          "the address is malformed",
		"/export?sort=oldest":              "&#34;sort&#34; is not a name",
		"/?span=decade":                    "span: &#34;decade&#34; is none: use week, day, month, year",
		"/tools?span=decade":               "span: &#34;decade&#34;",
		"/people?by=session":               "by: &#34;session&#34; is none: use principal, team",
		"/branches?sort=cost":              "sort: &#34;cost&#34; is none: use newest, tokens",
		"/branches?open=maybe":             "open: &#34;maybe&#34; is none: use false, true",
		"/branch?path=br_a&x=1":            "&#34;x&#34; is not a name",
		"/budgets?person=alice":            "&#34;person&#34; is not a name",
		"/integrity?dir=other":             "&#34;dir&#34;: the address of this page has no filters",
		"/definition?tool=db__read":        "&#34;tool&#34; is not a name",
	} {
		if page := v.page(address, http.StatusBadRequest); !strings.Contains(page, said) {
			t.Errorf("%s does not say %s", address, said)
		}
	}
	for _, address := range []string{"/calls?principal=alice&blocked=false&tree=&sort=oldest&size=5&after=", "/export?principal=alice&of=1", "/people?by=principal&span=day", "/branches?open=false&sort=newest", "/?since=1d&server="} {
		v.page(address, http.StatusOK)
	}
}

// TestNamesWithoutRecords: a name that no record has, or none any longer, is no fault of the address.
func TestNamesWithoutRecords(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), false, nil)
	for address, said := range map[string]string{
		"/calls?principal=zed":     "principal: no record has the name &#34;zed&#34;; there are ",
		"/calls?tool=db__reed":     "tool: no record has the name &#34;db__reed&#34;",
		"/export?context=br_b":     "context: no record has the name &#34;br_b&#34;; there are br_a",
		"/people?principal=zed":    "principal: no record has the name &#34;zed&#34;; there are ",
		"/people?by=team&team=zed": "team: no record has the name &#34;zed&#34;",
		"/branches?principal=zed":  "principal: no record has the name &#34;zed&#34;",
		"/?server=zed":             "server: no record has the name &#34;zed&#34;",
		"/tools?server=zed":        "server: no record has the name &#34;zed&#34;",
	} {
		if page := v.page(address, http.StatusNotFound); !strings.Contains(page, said) || !strings.Contains(page, "that retention has removed") {
			t.Errorf("%s: %s", address, page)
		}
	}
	if page := v.page("/peeple", http.StatusNotFound); !strings.Contains(page, "there is no page &#34;/peeple&#34;") || !strings.Contains(page, `href="/people"`) {
		t.Errorf("a path without a page: %s", page)
	}
}

// TestWhileBuilding: while the index is made a form changes nothing and says so; who wants to leave can.
func TestWhileBuilding(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), true, nil)
	var csrf string
	for _, s := range v.c.sessions {
		csrf = "csrf=" + s.CSRF
	}
	if body := v.page("/integrity", http.StatusServiceUnavailable); !strings.Contains(body, `id="building"`) {
		t.Error("a page does not say that the index is being made")
	}
	if w := v.ask(http.MethodPost, "/integrity", csrf); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "Nothing was changed") || strings.Contains(w.Body.String(), "data-live") {
		t.Errorf("a form: %d %s", w.Code, w.Body)
	}
	if v.c.verify.cancel != nil || len(v.c.verify.results) > 0 {
		t.Error("a verification began")
	}
	if w := v.ask(http.MethodPost, "/logout", csrf); w.Code != http.StatusSeeOther || len(v.c.sessions) != 0 {
		t.Errorf("the logout: %d, %d sessions", w.Code, len(v.c.sessions))
	}
}

// TestVerifyWhileClosing: a form that arrives while the console closes begins no verification.
func TestVerifyWhileClosing(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), false, nil)
	var csrf string
	for _, s := range v.c.sessions {
		csrf = "csrf=" + s.CSRF
	}
	v.c.verify.stop()
	if w := v.ask(http.MethodPost, "/integrity", csrf); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "start it again") {
		t.Errorf("a form: %d %s", w.Code, w.Body)
	}
	if v.c.verify.cancel != nil || len(v.c.verify.results) > 0 {
		t.Error("a verification began")
	}
}

// TestRefusedLink: the page of a link that was used has its status and its type.
func TestRefusedLink(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), false, nil)
	if w := v.ask(http.MethodPost, v.c.Link(), ""); w.Code != http.StatusForbidden || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%d, %q", w.Code, w.Header().Get("Content-Type"))
	}
}

// TestEvents: a page is told at once that it is connected, and then of each change.
func TestEvents(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), false, nil)
	server := httptest.NewServer(v.c)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "127.0.0.1:8788"
	r.AddCookie(v.cookie)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	events := bufio.NewScanner(res.Body)
	if !events.Scan() || events.Text() != ":" {
		t.Fatalf("%s: first %q, %v", res.Status, events.Text(), events.Err())
	}
	v.c.change()
	for events.Scan() && events.Text() == "" {
	}
	if events.Text() != "event: changed" {
		t.Errorf("after a change %q, %v", events.Text(), events.Err())
	}
}

// TestCookieOfPort: consoles on two ports of a host have cookies of their own.
func TestCookieOfPort(t *testing.T) {
	for host, want := range map[string]string{"127.0.0.1:8788": "foldgate_console_8788", "[::1]:9": "foldgate_console_9", "console.example.com": "foldgate_console"} {
		if got := cookieName(&http.Request{Host: host}); got != want {
			t.Errorf("the cookie of %s is %s, want %s", host, got, want)
		}
	}
}

// TestUpdateLeavesSaid: what a form did is told on the page that follows, and not lost to an update of the
// page before.
func TestUpdateLeavesSaid(t *testing.T) {
	v := visit(t, journal(t, push("br_a", pushed)), false, nil)
	for _, s := range v.c.sessions {
		s.said = "It is done."
	}
	r := httptest.NewRequest(http.MethodGet, "/budgets", nil)
	r.Host = "127.0.0.1:8788"
	r.AddCookie(v.cookie)
	r.Header.Set("X-Live", "1")
	w := httptest.NewRecorder()
	v.c.ServeHTTP(w, r)
	if strings.Contains(w.Body.String(), "It is done.") || !strings.Contains(v.page("/budgets", http.StatusOK), "It is done.") {
		t.Error("the update took the message")
	}
}

// TestTrendOfSubject: the trend of a limit is that of its subject, by the names that the trace has.
func TestTrendOfSubject(t *testing.T) {
	call := func(server, tool string, tokens int) *trace.Record {
		return &trace.Record{TS: pushed.Format(trace.TimeFormat), From: "upstream:x", Kind: trace.KindResponse + "tools/call",
			Audit: &trace.Audit{Principal: "alice", Server: server, Tool: tool, Tokens: &trace.Tokens{Delivered: tokens}}}
	}
	dir := journal(t, call("files", "read", 11), call("db", "read", 2200), call("files", "list", 33000))
	v := visit(t, dir, false, func(o *Options) {
		o.Budgets = func(context.Context) ([]control.Budget, error) {
			return []control.Budget{{Limit: "m", Per: "principal", Subject: "alice", Model: true, Tokens: 50, TokensUsed: 7}, {Limit: "a", Per: "tool", Subject: "files__read", Tokens: 50, TokensUsed: 11}, {Limit: "b", Per: "principal", Subject: "", Tokens: 50, TokensUsed: 5}}, nil
		}
	})
	body := v.page("/budgets", http.StatusOK)
	if !strings.Contains(body, `data-s="delivered" data-v="11"`) || strings.Contains(body, "33000") || strings.Contains(body, "2200") {
		t.Error("the trend of a tool has other records than those of the tool")
	}
	if strings.Count(body, `id="trend-`) != 2 { // a heading and a table
		t.Error("a subject without a name, or a limit of model tokens, has a trend")
	}
	if !strings.Contains(body, "<td>model tokens</td>") {
		t.Error("model tokens are shown as those that hosts get")
	}
	if !strings.Contains(body, "server=files") || !strings.Contains(body, "tool=read") {
		t.Error("the figures do not lead to the records of the tool")
	}
}

// FuzzAddress: no address breaks a page, or puts markup into it.
func FuzzAddress(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "trace")
	if err := recorded.Write(dir, recorded.Options{Records: 600, Begin: pushed, Small: true}); err != nil {
		f.Fatal(err)
	}
	v := visit(f, dir, false, nil)
	paths := []string{"/", "/calls", "/branches", "/branch", "/budgets", "/people", "/tools", "/definition", "/integrity"}
	for i, text := range append(recorded.Hostile, "18446744073709551616", "-1", "2026-11-01", "3d", "0-0", "9223372036854775807-0-9223372036854775807") {
		for _, name := range []string{"after", "tool", "since", "until", "span", "path", "seq", "page", "sort", "depth", "size", "principal", "correlates", "chain", "workflow", "context", "kind"} {
			f.Add(uint8(i), url.Values{name: {text}}.Encode())
		}
	}
	for i := range paths {
		f.Add(uint8(i), "since=2026-11-01T00:00:00Z&until=2026-11-03&sort=tokens&after=tokens_5_7&size=3&orphans=true")
	}
	markup := regexp.MustCompile(`(?i)<(img|iframe|textarea|script>|script [^s]|[a-z][^<>]* on[a-z]+=)`)
	quoted := regexp.MustCompile(`"[^"]*"`)
	hidden := regexp.MustCompile("[\u202a-\u202e\u200b-\u200f\x00-\x08\x1b]")
	f.Fuzz(func(t *testing.T, path uint8, rawQuery string) {
		v.t = t
		w := v.ask(http.MethodGet, paths[int(path)%len(paths)]+"?"+rawQuery, "")
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d: %.600s", w.Code, w.Body)
		}
		body := quoted.ReplaceAllString(w.Body.String(), "")
		if strings.Contains(w.Body.String(), `href="javascript:`) {
			t.Error("a link is a script")
		}
		if found := markup.FindString(body); found != "" {
			t.Errorf("markup from outside: %q", found)
		}
		if found := hidden.FindString(body); found != "" {
			t.Errorf("a character that nobody sees: %q", found)
		}
		if values, err := url.ParseQuery(rawQuery); err == nil { // what a link of a page has is read as the same filter
			if one, err := query.FromAddress(values); err == nil {
				again, err := query.FromAddress(must(t, address("/calls", values)).Query())
				if err != nil || fmt.Sprint(withoutTimes(one)) != fmt.Sprint(withoutTimes(again)) {
					t.Errorf("the filter %+v becomes %+v, %v", one, again, err)
				}
			}
		}
	})
}

// withoutTimes leaves out what an age such as 3d makes of the time of day.
func withoutTimes(f query.Filter) query.Filter {
	f.Since, f.Until = time.Time{}, time.Time{}
	return f
}

func must(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
