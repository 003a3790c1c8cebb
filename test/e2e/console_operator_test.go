//go:build e2e

package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// logIn logs in with a token.
func (a *auditor) logIn(token string) {
	a.t.Helper()
	a.run(chromedp.Navigate(a.base+"/login"), chromedp.SendKeys(chromedp.CSS(`input[name="token"]`), token))
	a.click(`//main//button`)
}

// TestConsoleOperators: auditors log in and look; operators also end a branch, reset a limit and approve a
// definition, and the trace says who did. An export proves what it has.
func TestConsoleOperators(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "answers.json")
	write(t, file, answers(definitions()))
	token := func(name string) string { return "token-of-" + name + "-0123456789" }
	g := newGateway(t, fmt.Sprintf(`upstreams:
  fake: {command: [%s, -answers, %s], prefix: say}
principals:
  alice: {token_sha256: "%x", team: data}
  eve: {token_sha256: "%x", roles: [audit]}
  oscar: {token_sha256: "%x", roles: [audit, ops]}
  nobody: {token_sha256: "%x", roles: [ops]}
auth: {auditor: audit, operator: ops}
budgets:
  limits:
    - {name: person, per: principal, tokens: 100k, window: 1d}
    - {name: tool, per: tool, tokens: 100k, window: 1d}
console: {listen: "127.0.0.1:0"}
`, fakeserverBin, file, sha256.Sum256([]byte(token("alice"))), sha256.Sum256([]byte(token("eve"))), sha256.Sum256([]byte(token("oscar"))), sha256.Sum256([]byte(token("nobody")))))
	start := func() *mcpclient.Client {
		alice := g.host(t, g.http(), mcpclient.Legacy, token("alice"))
		call(t, alice, ctx, "tools/list", `{}`)
		return alice
	}
	start() // the first contact
	g.stop()
	changed := definitions()
	changed["tool"].([]any)[0].(map[string]any)["description"] = `does pay <img src=x onerror=alert(1)>`
	write(t, file, answers(changed))
	alice := start()
	b := create(t, alice, ctx, map[string]any{"description": "look <b>around</b>"})
	tool(t, alice, ctx, "say__text", jsonText(map[string]any{"branch_id": b.BranchID}))

	base, at := g.runConsole()
	if at != base+"/login" {
		t.Errorf("the address is %s, want the login", at)
	}
	a := browser(t, base, "")
	for _, wrong := range []string{"x", token("alice"), token("nobody")} {
		a.run(chromedp.Navigate(base + "/login"))
		a.run(chromedp.SendKeys(chromedp.CSS(`input[name="token"]`), wrong))
		if res, err := chromedp.RunResponse(a.ctx, chromedp.Click(`//main//button`)); err != nil || res.Status != http.StatusForbidden {
			t.Errorf("token %q: %+v, %v, want 403", wrong, res, err)
		}
	}
	a.mu.Lock()
	a.faults = nil // the browser tells of each 403
	a.mu.Unlock()

	a.logIn(token("eve"))
	a.ready()
	branch := "/branch?path=" + b.BranchID
	for _, path := range []string{branch, "/budgets", "/definition?server=fake&kind=tool&name=pay"} {
		a.open(path)
		if n := script[int](a, `document.querySelectorAll("main form").length`); n != 0 {
			t.Errorf("an auditor sees %d forms on %s", n, path)
		}
	}
	if text := script[string](a, `document.querySelector("pre.diff").innerText`); !strings.Contains(text, "+ description: does pay <img src=x") || !strings.Contains(text, "- description: does pay") {
		t.Errorf("the difference is %q", text)
	}
	// The forms of an operator, with the cookie of the auditor, and without the secret of the page.
	cookies, err := chromedp.Call(a.ctx, network.GetCookies, network.GetCookiesParams{})
	if err != nil || len(cookies.Cookies) != 1 || !cookies.Cookies[0].HTTPOnly || cookies.Cookies[0].SameSite != network.CookieSameSiteStrict {
		t.Fatalf("cookies %+v, %v, want one that scripts and other sites can't use", cookies, err)
	}
	secret := script[string](a, `document.querySelector("input[name=csrf]").value`)
	post := func(path, csrf string) int {
		form := url.Values{"csrf": {csrf}, "path": {b.BranchID}, "limit": {"person"}, "subject": {"alice"}, "server": {"fake"}, "kind": {"tool"}, "name": {"pay"}}
		req, err := http.NewRequestWithContext(a.ctx, http.MethodPost, base+path, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.AddCookie(&http.Cookie{Name: cookies.Cookies[0].Name, Value: cookies.Cookies[0].Value})
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for _, path := range []string{"/branches/end", "/budgets/reset", "/definition/approve"} {
		for _, csrf := range []string{secret, "", "x"} {
			if status := post(path, csrf); status != http.StatusForbidden {
				t.Errorf("an auditor's %s with secret %q: %d, want 403", path, csrf, status)
			}
		}
	}
	a.click(`//button[. = "Log out"]`)

	a.logIn(token("oscar"))
	secret = ""
	a.inspect(branch, "/budgets", "/tools", "/definition?server=fake&kind=tool&name=pay", "/integrity")
	a.open(branch)
	a.run(chromedp.Click(`//summary[. = "End this branch"]`), chromedp.SendKeys(chromedp.CSS(`input[name="reason"]`), "too slow"))
	a.click(`//button[contains(., "End the branch")]`)
	if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, "The branch has ended.") {
		t.Errorf("after the end of the branch: %.600s", text)
	}
	a.open("/budgets")
	if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, "alice") || !strings.Contains(text, "person") {
		t.Errorf("budgets: %.600s", text)
	}
	// The trend of a tool has its calls, also if its server has a prefix of its own.
	if got := script[string](a, `[...document.querySelectorAll("section[aria-label='Trend of tool say__text tokens'] td:nth-child(2)")].map(c => c.textContent).join()`); got != "1" {
		t.Errorf("calls by day of say__text: %q, want 1", got)
	}
	a.click(`//tr[td[2][. = "alice"]]//button`)
	if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, "1 count is 0 again.") {
		t.Errorf("after the reset: %.600s", text)
	}
	a.open("/tools")
	a.click(link("changed"))
	a.click(`//button[. = "Approve"]`)
	if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, "The definition is approved.") || !strings.Contains(text, "by oscar") {
		t.Errorf("after the approval: %.600s", text)
	}

	// The trace has what the operator did, and who opened the records about it.
	a.open("/calls?kind=system/access")
	a.waitFor(`document.querySelectorAll("#records tbody tr a[href^='/records/']").length == 2`)
	did := script[[]string](a, `[...document.querySelectorAll("#records tbody tr a[href^='/records/']")].map(e => e.getAttribute("href"))`)
	for _, path := range did {
		a.open(path)
		if text := script[string](a, "document.querySelector('main').innerText"); !strings.Contains(text, `"by": "oscar"`) || !strings.Contains(text, `"method": "DELETE"`) {
			t.Errorf("the record does not say who: %.800s", text)
		}
	}
	a.open("/calls?kind=system/access")
	a.waitFor(`document.querySelectorAll("#records tbody tr a[href^='/records/']").length == 4`)
	opened := g.output("trace", "--kind", "system/access", "--format", "jsonl")
	for _, path := range did {
		if id := strings.TrimPrefix(path, "/records/"); !strings.Contains(opened, `"query":"record=`+id+`"`) {
			t.Errorf("the trace does not say who opened %s:\n%s", id, opened)
		}
	}
	a.open("/calls?kind=definition/approved")
	a.waitFor(`document.querySelector("#records tbody").innerText.includes("definition/approved")`)

	// An export of the branch.
	cookies, err = chromedp.Call(a.ctx, network.GetCookies, network.GetCookiesParams{})
	if err != nil {
		t.Fatal(err)
	}
	a.open("/calls?context=" + b.BranchID)
	export := base + script[string](a, `[...document.querySelectorAll("a")].find(e => e.textContent.startsWith("Export")).getAttribute("href")`)
	req, err := http.NewRequestWithContext(a.ctx, http.MethodGet, export, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(&http.Cookie{Name: cookies.Cookies[0].Name, Value: cookies.Cookies[0].Value})
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", res.Status, err)
	}
	if out := g.output("trace", "--kind", "system/access", "--format", "jsonl"); !strings.Contains(out, `"query":"export=context=`+b.BranchID) {
		t.Errorf("the trace does not say who exported:\n%s", out)
	}
	archive := filepath.Join(dir, "export.jsonl")
	write(t, archive, string(text))
	a.open("/integrity")
	head := script[string](a, `document.querySelector("code.copy").textContent`)
	if out, code := g.operate("trace", "verify", "--export", archive, "--anchor", head); code != 0 || !strings.Contains(out, ": ok") {
		t.Errorf("trace verify --export: %d %s", code, out)
	}
	write(t, archive, strings.Replace(string(text), "around", "AROUND", 1))
	if out, code := g.operate("trace", "verify", "--export", archive); code != 1 {
		t.Errorf("trace verify of a changed export: %d %s", code, out)
	}
	var all []map[string]any
	unmarshal(t, []byte(g.output("pins", "--json")), &all)
	if !slices.ContainsFunc(all, func(p map[string]any) bool {
		return p["name"] == "pay" && p["state"] == "approved" && p["by"] == "oscar"
	}) {
		t.Errorf("pins %+v", all)
	}
}
