//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// questions are what an auditor asks, and the clicks that answer it from the overview on. A click is an
// XPath; answer is true on the last page.
var questions = []struct {
	ask    string
	clicks []string
	answer string
}{
	{"what was refused, and why?", []string{`//ul[@class="figures"]//a[contains(., "refused")]`, `//*[@id="records"]//tbody/tr[1]//a[1]`}, `/Decision\s+blocked, reason (policy|resource_limit), rule \S+/.test(document.querySelector("main").innerText)`},
	{"in which calls were secrets found?", []string{`//ul[@class="figures"]//a[contains(., "with secrets")]`, `//*[@id="records"]//tbody/tr[1]//a[1]`}, `document.querySelector("main").innerText.includes("github-pat at $.result")`},
	{"which server is slowest, and which of its calls?", []string{`//section[@aria-label="Servers"]//tr[td[1][contains(., "tickets")]]/td[last()]//a`}, `document.querySelectorAll("#records tbody tr td:nth-child(4)").length == 50 && [...document.querySelectorAll("#records tbody tr td:nth-child(4)")].every(e => e.textContent == "tickets")`},
	{"who spent the most tokens, and with which tools?", []string{`//nav//a[. = "People"]`, `//*[@id="people"]//tbody/tr[1]//a[1]`}, `(t => t.length == 2 && t[1].querySelectorAll("tbody tr").length > 5)(document.querySelectorAll("#people .scroll table"))`},
	{"what does each team cost?", []string{`//nav//a[. = "People"]`, `//main//a[. = "teams"]`}, `document.querySelectorAll("#people tbody tr").length == 8`},
	{"what did one person do today?", []string{`//nav//a[. = "People"]`, `//*[@id="people"]//a[. = "dev-07"]`, `//main//a[contains(., "All records of dev-07")]`}, `[...document.querySelectorAll("#records tbody tr td:nth-child(3)")].every(e => e.textContent == "dev-07")`},
	{"which branches are open?", []string{`//nav//a[. = "Branches"]`, `//main//a[. = "open"]`}, `[...document.querySelectorAll("#branches tbody tr td:nth-child(4)")].every(e => e.textContent == "open") && document.querySelectorAll("#branches tbody tr").length > 3`},
	{"what happened in the dearest branch, from its beginning to its end?", []string{`//nav//a[. = "Branches"]`, `//main//a[. = "most tokens"]`, `//*[@id="branches"]//tbody/tr[1]//a[1]`}, `(t => t.includes("context/push") && t.includes("context/pop"))(document.querySelector("main").innerText) && !!document.querySelector("svg.waterfall rect")`},
	{"what led to a failed call?", []string{`//ul[@class="figures"]//a[contains(., "errors")]`, `//*[@id="records"]//tbody/tr[1]//a[1]`, `//main//a[. = "all causes and effects"]`}, `(k => k.includes("mcp/request:tools/call") && k.includes("mcp/response:tools/call"))([...document.querySelectorAll("#records tbody tr td:nth-child(2)")].map(e => e.textContent))`},
	{"was a record changed?", []string{`//nav//a[. = "Integrity"]`, `//button[. = "Verify"]`}, `!!document.querySelector(".verdict .good")`},
}

// TestConsoleQuestions: an auditor answers ten questions by clicking, and again at the width of a phone
// and in the dark.
func TestConsoleQuestions(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "")
	base, first := g.runConsole("--listen", "127.0.0.1:0", "--dir", recordedDay(t))
	a := browser(t, base, first)
	a.enter()
	a.ready()
	for _, q := range questions {
		t.Run(strings.ReplaceAll(q.ask, " ", "_"), func(t *testing.T) {
			a.t = t
			a.open("/")
			for _, c := range q.clicks {
				a.click(c)
			}
			a.waitFor(q.answer)
		})
	}
	a.t = t
	if err := chromedp.Do(a.ctx, chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile)); err != nil {
		t.Fatal(err)
	}
	dark := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
	if _, err := chromedp.Call(a.ctx, emulation.SetEmulatedMedia, dark); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/calls", "/branches", "/budgets", "/people", "/tools", "/integrity"} {
		a.open(path)
		if wide := script[int](a, "document.documentElement.scrollWidth"); wide > 390 {
			t.Errorf("%s is %d wide on a phone", path, wide)
		}
		if back := script[string](a, "getComputedStyle(document.body).backgroundColor"); back != "rgb(20, 24, 29)" {
			t.Errorf("%s has the background %s in the dark", path, back)
		}
	}
}
