//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// TestConsolePictures makes the pictures of docs/console.md:
//
//	FOLDGATE_PICTURES=docs/console go test -tags e2e -count 1 -run ConsolePictures ./test/e2e
func TestConsolePictures(t *testing.T) {
	dir := os.Getenv("FOLDGATE_PICTURES")
	if dir == "" {
		t.Skip("FOLDGATE_PICTURES does not name a directory")
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join("..", "..", dir)
	}
	g := newGateway(t, "")
	base, first := g.runConsole("--listen", "127.0.0.1:0", "--dir", recordedDay(t))
	a := browser(t, base, first)
	a.enter()
	a.ready()
	a.open("/branches")
	branch := script[string](a, `[...document.querySelectorAll("#branches td:first-child a")].map(e => e.getAttribute("href")).find(h => h.includes("%2F"))`)
	branch, _, _ = strings.Cut(branch, "%2F")
	a.pictures(dir, map[string]string{"overview": "/", "calls": "/calls?team=team-3&kind=mcp/response", "branch": branch})

	live := newGateway(t, limitedPeople())
	at := live.http()
	for i, name := range []string{"alice", "bob", "carol"} {
		c := live.host(t, at, mcpclient.Legacy, limitedToken(name))
		for range 3 + 4*i {
			tool(t, c, testContext(t), "files__list_directory", `{"path":"."}`)
		}
	}
	a.base, a.link = live.runConsole("--listen", "127.0.0.1:0")
	a.enter()
	a.ready()
	a.pictures(dir, map[string]string{"budgets": "/budgets"})
}

func limitedToken(name string) string { return "token-of-" + name + "-0123456789" }

// limitedPeople is a configuration with people who have limits.
func limitedPeople() string {
	text := "upstreams: {files: {builtin: files, roots: [.]}}\nbudgets:\n  limits:\n    - {name: person, per: principal, calls: 12, tokens: 2k, window: 1d}\n    - {name: team, per: team, tokens: 5k, window: 1mo}\nprincipals:\n"
	for _, name := range []string{"alice", "bob", "carol"} {
		text += fmt.Sprintf("  %s: {token_sha256: \"%x\", team: data}\n", name, sha256.Sum256([]byte(limitedToken(name))))
	}
	return text
}

// pictures writes pictures of pages, by name: light, dark, and at the width of a phone.
func (a *auditor) pictures(dir string, pages map[string]string) {
	a.t.Helper()
	for _, form := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1180, 720}, {"dark", "dark", 1180, 720}, {"phone", "light", 390, 720}} {
		a.scheme(form.scheme)
		a.run(chromedp.EmulateViewport(form.width, form.height))
		for name, path := range pages {
			a.open(path)
			shot, err := chromedp.Run(a.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				a.t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name+"-"+form.name+".png"), fewColors(a.t, shot), 0o644); err != nil {
				a.t.Fatal(err)
			}
		}
	}
}

// fewColors returns a picture with its 256 most frequent colours: a third of the bytes.
func fewColors(t *testing.T, shot []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	count, box := map[color.Color]int{}, from.Bounds()
	for y := range box.Dy() {
		for x := range box.Dx() {
			count[from.At(x, y)]++
		}
	}
	var all color.Palette
	for c := range count {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.Color) int { return cmp.Compare(count[b], count[a]) })
	to := image.NewPaletted(box, all[:min(len(all), 256)])
	for c := range count { // once for each colour: the search for the nearest is slow
		count[c] = to.Palette.Index(c)
	}
	for y := range box.Dy() {
		for x := range box.Dx() {
			to.SetColorIndex(x, y, uint8(count[from.At(x, y)])) // #nosec G115: below 256
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
