//go:build e2e

package e2e

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// An erasure is refused while the gateway runs. Afterwards its texts are in no file, however often
// it was killed before; the chain is proved at each moment, and the gateway goes on with it.
func TestErasure(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, "upstreams:\n  files: {builtin: files, roots: [.]}\ntrace: {rotate_mb: 1}\n")
	write(t, filepath.Join(g.dir, "note.txt"), strings.Repeat("Erika Mustermann\n", 1000))
	c := g.stdio(mcpclient.Legacy)
	for range 250 {
		tool(t, c, ctx, "files__read_file", `{"path":"note.txt"}`)
		tool(t, c, ctx, "files__search_files", `{"pattern":"**/keep"}`)
	}
	erase := []string{"trace", "erase", "--tool", "read_file", "--yes"}
	if out, err := g.command(erase...).Output(); err == nil {
		t.Errorf("an erasure beside the gateway: %s", out)
	}
	g.stop()
	if !strings.Contains(g.log.String(), "stop it, erase, and start it again") {
		t.Error("the refusal does not say what to do")
	}
	count := func() (n int) {
		files, err := filepath.Glob(filepath.Join(g.dir, "state", "trace", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data := read(t, f)
			n += strings.Count(string(data), "Mustermann")
		}
		return n
	}
	before, partly := count(), 0
	verified := func() string {
		lines := strings.Split(strings.TrimSpace(g.output("trace", "verify")), "\n")
		return lines[len(lines)-1]
	}
	for i := range 12 {
		cmd := g.command(erase...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(rand.IntN(100)+40*i) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		verified()
		if n := count(); n > 0 && n < before {
			partly++
		}
	}
	g.output(erase...)
	if n := count(); before == 0 || n != 0 {
		t.Errorf("the text is there %d times, was there %d times", n, before)
	}
	t.Logf("%d of 12 erasures were killed in their middle; %s", partly, verified())
	c = g.stdio(mcpclient.Legacy)
	tool(t, c, ctx, "files__read_file", `{"path":"note.txt","limit":1}`)
	g.stop()
	if verdict := verified(); !strings.HasSuffix(verdict, ", 500 payloads erased: ok") {
		t.Errorf("verify: %s", verdict)
	}
	if n := len(g.trace("--tool", "read_file")); n != 502 {
		t.Errorf("%d records of the tool, want 502", n)
	}
	out := g.output("trace", "--tool", "read_file", "--limit", "2")
	if strings.Count(out, " erased") != 2 {
		t.Errorf("records: %s", out)
	}
}
