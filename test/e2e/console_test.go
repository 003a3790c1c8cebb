//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/test/mcpclient"
	day "github.com/foldgate/foldgate/test/recorded"
)

// auditor is a browser at a console.
type auditor struct {
	t    *testing.T
	ctx  context.Context
	base string // scheme://host:port
	link string // the one-time link

	mu     sync.Mutex
	faults []string // what a page must not do: dialogs, errors, refused scripts
}

var consoleLink = regexp.MustCompile(`open ((https?://[^/]+)/(?:enter/|login)\S*)`)

// runConsole runs foldgate console until the gateway ends, and returns the base address and the link.
func (g *gateway) runConsole(args ...string) (base, link string) {
	g.t.Helper()
	_, said := g.background(consoleLink, append([]string{"console"}, args...)...)
	return said[2], said[1]
}

// browser starts Chromium.
func browser(t *testing.T, base, link string) *auditor {
	t.Helper()
	bin, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: .ci/deps installs it", err)
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(bin), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 900),
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	allocator, end := chromedp.NewExecAllocator(ctx, options...)
	ctx, stop := chromedp.NewContext(allocator)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx); stop(); end(); cancel() })
	a := &auditor{t: t, ctx: ctx, base: base, link: link}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, func(ev any) {
		fault := ""
		switch ev := ev.(type) {
		case *page.EventJavascriptDialogOpening:
			fault = "dialog: " + ev.Message
		case *runtime.EventExceptionThrown:
			fault = ev.ExceptionDetails.Text
		case *log.EventEntryAdded:
			// A console that begins or ends does not answer.
			if text := ev.Entry.Text; ev.Entry.Level == log.EntryLevelError && !strings.Contains(text, "503") && !strings.Contains(text, "ERR_CONNECTION_REFUSED") {
				fault = ev.Entry.Text
			}
		}
		if fault != "" {
			a.mu.Lock()
			a.faults = append(a.faults, fault)
			a.mu.Unlock()
		}
	}); err != nil {
		t.Fatal(err)
	}
	return a
}

// run fails the test if an action fails.
func (a *auditor) run(actions ...chromedp.Action[chromedp.Void]) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.ctx, 60*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		at, _ := chromedp.Run(a.ctx, chromedp.Location())
		text, _ := chromedp.Run(a.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		a.t.Fatalf("%v at %s:\n%.2000s", err, at, text)
	}
}

// open goes to a page, and checks that it is one without faults.
func (a *auditor) open(path string) {
	a.t.Helper()
	a.run(chromedp.Navigate(a.base+path), chromedp.WaitVisible(chromedp.CSS("main h1")))
	a.sound()
}

// click clicks on a link or button and waits for the next page.
func (a *auditor) click(xpath string) {
	a.t.Helper()
	// A page that waits for streams of earlier pages takes a minute.
	ctx, cancel := context.WithTimeout(a.ctx, 45*time.Second)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, chromedp.Click(xpath)); err != nil {
		a.t.Fatalf("click on %s: %v", xpath, err)
	}
	a.run(chromedp.WaitVisible(chromedp.CSS("main h1")))
	a.sound()
}

// link is the XPath of a link by its text.
func link(text string) string {
	return fmt.Sprintf(`//main//a[contains(normalize-space(.), %q)]`, text)
}

// script evaluates JavaScript for the test; pages can't do this.
func script[T any](a *auditor, js string) T {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.ctx, 30*time.Second)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		a.t.Fatalf("%s: %v", js, err)
	}
	return out
}

// waitFor waits until JavaScript is true.
func (a *auditor) waitFor(js string) {
	a.t.Helper()
	if !a.within(50*time.Second, js) {
		a.t.Fatalf("never: %s\n%s", js, script[string](a, "document.body.innerText"))
	}
}

// within reports whether JavaScript becomes true within some time.
func (a *auditor) within(most time.Duration, js string) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(most); time.Now().Before(deadline); <-tick.C {
		// While another page is loaded there is nothing to ask.
		if is, err := chromedp.Run(a.ctx, chromedp.Evaluate[bool](js)); err == nil && is {
			return true
		}
	}
	return false
}

// sound checks that nothing that a server or host wrote has become more than text.
func (a *auditor) sound() {
	a.t.Helper()
	a.mu.Lock()
	faults := slices.Clone(a.faults)
	a.mu.Unlock()
	if len(faults) > 0 {
		a.t.Errorf("the browser says: %q", faults)
	}
	if got := script[[]string](a, `[...document.querySelectorAll("main script, main img, main iframe, main [onerror], main [onload], main [style]:not(.uplot *):not(.uplot), a[href^='javascript:' i]")].map(e => e.outerHTML)`); len(got) > 0 {
		a.t.Errorf("markup from outside is in the page: %q", got)
	}
	if title := script[string](a, "document.title"); !strings.HasSuffix(title, "foldgate console") {
		a.t.Errorf("the title is %q", title)
	}
	if hidden := script[bool](a, `/[\u202a-\u202e\u200b-\u200f\u0000-\u0008\u001b]/.test(document.body.innerText)`); hidden {
		a.t.Error("characters that nobody sees are in the page")
	}
}

// enter takes the one-time link.
func (a *auditor) enter() {
	a.t.Helper()
	a.run(chromedp.Navigate(a.link), chromedp.WaitVisible(chromedp.CSS("main button")))
	a.click(`//button[. = "Open the console"]`)
}

// ready waits until the console has read the trace.
func (a *auditor) ready() {
	a.t.Helper()
	a.run(chromedp.Navigate(a.base + "/"))
	for range 4 { // on a busy machine the index of a long trace takes its time
		if a.within(50*time.Second, `!!document.querySelector("main h1") && !document.getElementById("building")`) {
			return
		}
	}
	a.t.Fatal("the console did not read the trace in 200 s")
}

// scripts says whether pages may run scripts.
func (a *auditor) scripts(on bool) {
	a.t.Helper()
	if _, err := chromedp.Call(a.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		a.t.Fatal(err)
	}
}

// recordedDay writes a day of 100,000 records and returns the trace directory.
func recordedDay(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "trace")
	if err := day.Write(dir, day.Options{Records: 100_000, Begin: time.Now().Add(-24 * time.Hour), Small: true}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestConsole: an auditor looks at a recorded day, with names and payloads that try to be markup.
func TestConsole(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "")
	base, first := g.runConsole("--listen", "127.0.0.1:0", "--dir", recordedDay(t))
	consoleRefuses(t, base, first)
	a := browser(t, base, first)
	a.enter()
	a.ready()

	t.Run("overview leads to records", func(t *testing.T) {
		a.t = t
		a.waitFor(`document.querySelectorAll("figure.drawn canvas").length == 2`) // they are drawn after the page
		refused := script[string](a, `document.querySelector(".figures li:nth-child(4) b").textContent`)
		if refused == "0" {
			t.Error("nothing was refused")
		}
		a.click(`//ul[@class="figures"]//a[contains(., "refused")]`)
		if all := script[bool](a, `[...document.querySelectorAll("#records tbody tr")].every(r => r.textContent.includes("blocked"))`); !all {
			t.Error("a record that was not refused is in the list")
		}
		a.open("/")
		at := script[[]float64](a, `(() => { const r = document.querySelector(".u-over").getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()`)
		a.run(chromedp.MouseEvent(chromedp.MouseMoved, at[0]-1, at[1]))
		a.run(chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]), chromedp.MouseClickXY(at[0], at[1]))
		a.waitFor(`location.pathname == "/calls" && location.search.includes("since=") && !!document.querySelector("#records")`)
	})

	t.Run("pages and sort", func(t *testing.T) {
		a.t = t
		a.open("/calls?kind=mcp/response")
		times := func() []string {
			return script[[]string](a, `[...document.querySelectorAll("#records tbody tr td:first-child")].map(e => e.textContent)`)
		}
		one := times()
		a.click(link("Next page"))
		two := times()
		if len(one) != 50 || len(two) != 50 || one[49] < two[0] || !slices.IsSortedFunc(one, func(a, b string) int { return strings.Compare(b, a) }) {
			t.Errorf("pages begin with %s and %s, and have %d and %d records", one[0], two[0], len(one), len(two))
		}
		a.click(link("most tokens"))
		tokens := script[[]int](a, `[...document.querySelectorAll("#records tbody tr td:nth-child(7)")].map(e => parseInt(e.firstChild.textContent.replaceAll(/\D/g, "")))`)
		if len(tokens) != 50 || !slices.IsSortedFunc(tokens, func(a, b int) int { return b - a }) || tokens[0] < tokens[49] {
			t.Errorf("tokens %v are not sorted", tokens)
		}
	})

	t.Run("every hostile text is text", func(t *testing.T) {
		a.t = t
		for _, text := range day.Hostile {
			a.open("/calls?" + url.Values{"tool": {text}}.Encode())
			if n := script[int](a, `document.querySelectorAll("#records tbody tr a[href^='/records/']").length`); n == 0 {
				t.Errorf("no record has the tool %q", text)
				continue
			}
			a.click(`//*[@id="records"]//tbody/tr[1]//a[1]`)
		}
		a.open("/calls?" + url.Values{"principal": {day.Hostile[0]}}.Encode())
		if got := script[bool](a, `document.querySelector("#records tbody").textContent.includes("<script>document.ti")`); !got {
			t.Error("the name of the principal is not shown")
		}
	})

	t.Run("one record and its neighbours", func(t *testing.T) {
		a.t = t
		a.open("/calls?kind=mcp/response&blocked=true")
		a.click(`//*[@id="records"]//tbody/tr[1]//a[1]`)
		if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, "fits the bytes of the record") || !strings.Contains(text, "is the hash of record") || !strings.Contains(text, "Because of") {
			t.Errorf("the record does not show its chain: %.900s", text)
		}
		title := script[string](a, "document.title")
		a.click(`//a[@rel="prev"]`)
		a.click(`//a[@rel="next"]`)
		if again := script[string](a, "document.title"); again != title {
			t.Errorf("back and forth: %q, want %q", again, title)
		}
	})

	t.Run("verification", func(t *testing.T) {
		a.t = t
		a.open("/integrity")
		head := script[string](a, `document.querySelector("code.copy").textContent`)
		a.run(chromedp.SendKeys(chromedp.CSS(`input[name="anchor"]`), head))
		a.click(`//button[. = "Verify"]`)
		a.waitFor(`!!document.querySelector(".verdict")`)
		if text := script[string](a, `document.querySelector(".verdict").textContent`); !strings.HasPrefix(text, "ok: 100\u202f00") || !strings.Contains(text, "The anchor was checked") {
			t.Errorf("verdict %q", text)
		}
	})

	t.Run("axe-core and html-validate", func(t *testing.T) {
		a.t = t
		first := func(path, in string) string {
			a.open(path)
			return script[string](a, fmt.Sprintf(`document.querySelector("%s tbody tr a").getAttribute("href")`, in))
		}
		record, branch, person := first("/calls?blocked=true&errors=true", "#records"), first("/branches?sort=tokens", "#branches"), first("/people", "#people")
		a.inspect("/", "/calls", "/calls?blocked=true&seq=1-5000&sort=ms", "/calls?until=2000-01-01T00:00:00Z", record, "/branches", branch, "/budgets", "/people", "/people?by=team", person, "/tools", "/integrity", "/login", "/enter/x", "/records/env_none")
	})

	t.Run("without JavaScript", func(t *testing.T) {
		a.t = t
		a.scripts(false)
		for _, path := range []string{"/", "/calls?blocked=true&sort=ms", "/integrity"} {
			a.run(chromedp.Navigate(a.base+path), chromedp.WaitVisible(chromedp.CSS("main table tbody tr td")))
		}
		a.scripts(true)
	})
}

// consoleRefuses asks as nobody should.
func consoleRefuses(t *testing.T, base, link string) {
	t.Helper()
	at, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, url string, change func(*http.Request)) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(req)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	for name, c := range map[string]struct {
		method, url string
		change      func(*http.Request)
		want        int
	}{
		"no cookie":          {"GET", base + "/calls", nil, http.StatusSeeOther},
		"a wrong cookie":     {"GET", base + "/calls", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "foldgate_console_" + at.Port(), Value: "x"}) }, http.StatusSeeOther},
		"events, no cookie":  {"GET", base + "/events", nil, http.StatusSeeOther},
		"another name":       {"GET", base + "/login", func(r *http.Request) { r.Host = "rebound.example" }, http.StatusMisdirectedRequest},
		"another site":       {"POST", link, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"another origin":     {"POST", link, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, http.StatusForbidden},
		"a wrong link":       {"POST", base + "/enter/AAAA", nil, http.StatusForbidden},
		"a look at the link": {"GET", link, nil, http.StatusOK},
	} {
		res := ask(c.method, c.url, c.change)
		if res.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, res.Status, c.want)
		}
		if p := res.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
			t.Errorf("%s: the policy is %q", name, p)
		}
	}
}

// TestConsoleLive: pages follow a gateway that runs, and the link works once.
func TestConsoleLive(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "upstreams: {files: {builtin: files, roots: [.]}}\n")
	write(t, filepath.Join(g.dir, "note.txt"), "hello\n")
	ctx := t.Context() // pages take longer beside other tests than one call may
	c := g.connect(ctx, "http", mcpclient.Modern)
	base, first := g.runConsole("--listen", "127.0.0.1:0")
	a := browser(t, base, first)
	a.enter()
	a.ready()
	res, err := http.Post(first, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("the link a second time: %s", res.Status)
	}
	cookies := script[string](a, "document.cookie")
	if cookies != "" {
		t.Errorf("scripts can read the cookie %q", cookies)
	}
	a.open("/calls?kind=mcp/request:tools/call")
	a.waitFor(`document.getElementById("live").textContent == "· live"`)
	for i := range 3 {
		if _, err := c.Call(ctx, "tools/call", `{"name":"files__read_file","arguments":{"path":"note.txt"}}`); err != nil {
			t.Fatal(err)
		}
		a.waitFor(fmt.Sprintf(`document.querySelectorAll("#records tbody tr a[href^='/records/']").length == %d`, i+1))
	}
	a.sound()
	a.open("/")
	if n := script[string](a, `document.querySelector(".figures b").textContent`); n != "3" {
		t.Errorf("the overview counts %s calls, want 3", n)
	}
	// A record that is changed is found, and shown.
	g.stop()
	names, err := trace.Segments(filepath.Join(g.dir, "state", "trace"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(g.dir, "state", "trace", names[0])
	text := read(t, file)
	write(t, file, strings.Replace(string(text), `"note.txt"`, `"other.tx"`, 1))
	base, first = g.runConsole("--listen", "127.0.0.1:0")
	a.base, a.link = base, first
	a.enter()
	a.ready()
	a.open("/integrity")
	a.click(`//button[. = "Verify"]`)
	a.waitFor(`!!document.querySelector(".verdict .bad")`)
	a.click(`//*[@id="verification"]//a[. = "record"]`)
	a.click(`//*[@id="records"]//tbody/tr[1]//a[1]`)
	if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, "is not as it was written") {
		t.Errorf("the changed record is shown as sound: %.500s", text)
	}
}
