//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	osuser "os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// The trace says who opened which record or made which export with the one-time link, with a gateway that runs
// and without. On a copy of the trace the console writes nothing.
func TestConsoleReadsAreRecorded(t *testing.T) {
	t.Parallel()
	me, err := osuser.Current()
	if err != nil {
		t.Fatal(err)
	}
	// reads opens a record and makes an export.
	reads := func(t *testing.T, g *gateway, args ...string) (record string) {
		base, link := g.runConsole(append([]string{"--listen", "127.0.0.1:0"}, args...)...)
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		browser := &http.Client{Jar: jar}
		res, err := browser.Post(link, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		get := func(path string) (status int, body string) {
			res, err := browser.Get(base + path)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(text)
		}
		until(t, "the console shows records", func() bool {
			status, text := get("/calls?kind=mcp/request:tools/call")
			_, rest, found := strings.Cut(text, `href="/records/`)
			record, _, _ = strings.Cut(rest, `"`)
			return status == http.StatusOK && found
		})
		for _, path := range []string{"/records/" + record, "/export?tool=echo"} {
			if status, text := get(path); status != http.StatusOK || text == "" {
				t.Errorf("%s: %d", path, status)
			}
		}
		return record
	}
	for _, running := range []bool{true, false} {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.dial(ctx, g.http(), mcpclient.Legacy)
		text(t, c, ctx, "fake__echo", `{}`)
		if !running {
			g.stop()
		}
		record := reads(t, g)
		by := `"by":"` + me.Username + ` (local link)"`
		found := ""
		for _, r := range g.trace("--kind", "system/access") {
			if payload := compact(t, r.Payload); strings.Contains(payload, by) && strings.Contains(payload, `"path":"/v1/read"`) {
				found += payload + "\n"
			}
		}
		if strings.Count(found, "\n") != 2 || !strings.Contains(found, `"query":"record=`+record+`"`) || !strings.Contains(found, `"query":"export=tool=echo"`) {
			t.Errorf("gateway runs %v: the trace has the reads\n%s", running, found)
		}
		if running {
			continue
		}
		n := len(g.trace())
		reads(t, g, "--dir", filepath.Join(g.dir, "state", "trace"))
		if after := len(g.trace()); after != n {
			t.Errorf("the console wrote %d records to a directory that may be a copy", after-n)
		}
	}
}
