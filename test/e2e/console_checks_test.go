//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// scheme sets what the browser says of its colours: light or dark.
func (a *auditor) scheme(name string) {
	a.t.Helper()
	to := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(a.ctx, emulation.SetEmulatedMedia, to); err != nil {
		a.t.Fatal(err)
	}
}

// axeFault is a rule of axe-core that a page breaks, and where.
type axeFault struct {
	Rule, Impact string
	Nodes        []string
}

// inspect opens pages, and checks each with axe-core, in both schemes, and with html-validate.
func (a *auditor) inspect(paths ...string) {
	a.t.Helper()
	axe, err := os.ReadFile(module(a.t, "axe-core/axe.min.js"))
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	of := map[string]string{}
	for i, path := range paths {
		a.run(chromedp.Navigate(a.base+path), chromedp.WaitVisible(chromedp.CSS("main h1")))
		source := awaited[string](a, `fetch(location.href).then(r => r.text())`)
		name := fmt.Sprintf("%02d.html", i)
		of[name] = path
		write(a.t, filepath.Join(dir, name), source)
		a.run(chromedp.Evaluate[chromedp.Void](string(axe)))
		for _, scheme := range []string{"light", "dark"} {
			a.scheme(scheme)
			options := `{resultTypes: ["violations"]}`
			if scheme == "dark" { // only these rules are about colors
				options = `{resultTypes: ["violations"], runOnly: ["color-contrast", "link-in-text-block"]}`
			}
			for _, f := range awaited[[]axeFault](a, `axe.run(`+options+`).then(r => r.violations.map(v => ({Rule: v.id, Impact: v.impact, Nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + " " + n.failureSummary)})))`) {
				a.t.Errorf("axe-core at %s, %s: %s %s\n%s", path, scheme, f.Impact, f.Rule, strings.Join(f.Nodes, "\n"))
			}
		}
		a.scheme("light")
	}
	a.mu.Lock()
	a.faults = slices.DeleteFunc(a.faults, func(s string) bool { return strings.Contains(s, "404") }) // of a page that says so
	a.mu.Unlock()
	a.sound()
	write(a.t, filepath.Join(dir, ".htmlvalidate.json"), `{"root": true, "extends": ["html-validate:recommended"]}`)
	cmd := exec.CommandContext(a.t.Context(), node(a.t), module(a.t, "html-validate/bin/html-validate.mjs"), "--formatter", "json="+filepath.Join(dir, "found.json"), dir)
	said, err := cmd.CombinedOutput()
	out, _ := os.ReadFile(filepath.Join(dir, "found.json"))
	var found []struct {
		FilePath string
		Messages []struct {
			RuleID, Message string
			Line, Column    int
		}
	}
	if json.Unmarshal(out, &found) != nil {
		a.t.Fatalf("html-validate: %v %s", err, said)
	}
	for _, f := range found {
		for _, m := range f.Messages {
			a.t.Errorf("html-validate at %s, line %d, column %d: %s (%s)", of[filepath.Base(f.FilePath)], m.Line, m.Column, m.Message, m.RuleID)
		}
	}
}

// awaited is script for a promise.
func awaited[T any](a *auditor, js string) T {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.ctx, time.Minute)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	if err != nil {
		a.t.Fatalf("%s: %v", js, err)
	}
	return out
}
