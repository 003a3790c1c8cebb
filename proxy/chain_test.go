package proxy

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// Each layer's work is seen where it is there, and missing where it alone is
// left out.
func TestWithout(t *testing.T) {
	const secret = "ghp_x7Kd9QmZ2bx7Kd9QmZ2bx7Kd9QmZ2bx7Kd9Q"
	for _, c := range []struct {
		without                   string
		counted, scrubbed, traced bool
	}{{"", true, true, true}, {"meter", false, true, true}, {"scrub", true, false, true}, {"trace", true, true, false}} {
		t.Run(c.without, func(t *testing.T) {
			var options []Option
			if c.without != "" {
				options = append(options, Without(c.without))
			}
			r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, options...)
			r.initialize()
			id, _ := rawjson.GetString([]byte(r.tool("branch_create", `{"description":"d"}`)), "structuredContent", "branch_id")
			before := r.budgetUsed(id)
			answer := r.tool("up__echo", `{"x":"github_token = `+secret+`","branch_id":"`+id+`"}`)
			if counted := r.budgetUsed(id) > before; counted != c.counted {
				t.Errorf("counted = %t, want %t", counted, c.counted)
			}
			if scrubbed := !strings.Contains(answer, secret); scrubbed != c.scrubbed {
				t.Errorf("scrubbed = %t, want %t: %s", scrubbed, c.scrubbed, answer)
			}
			records := 0
			for rec, err := range query.Scan(t.Context(), filepath.Join(r.g.cfg.StateDir, "trace"), query.Filter{Kinds: []string{trace.KindRequest + "tools/call"}}) {
				if err != nil {
					t.Fatal(err)
				}
				records++
				if strings.Contains(string(rec.Payload), secret) {
					t.Errorf("a secret is stored: %s", rec.Payload)
				}
			}
			if traced := records > 0; traced != c.traced {
				t.Errorf("the journal holds %d calls, want any: %t", records, c.traced)
			}
		})
	}
}

// budgetUsed asks what a branch has been charged.
func (r *rig) budgetUsed(branch string) int {
	r.t.Helper()
	raw, _ := rawjson.Get([]byte(r.tool("branch_status", `{"branch_id":"`+branch+`"}`)), "structuredContent", "budget_used")
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		r.t.Fatalf("budget_used is %q", raw)
	}
	return n
}

func TestWithoutUnknownLayer(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir, cfg.Dir = t.TempDir(), t.TempDir()
	_, err := New(cfg, warnings(t), Without("scrub", "count"))
	const want = `no layer "count" to leave out: there are trace, recover, attribute, meter, fold, workflow, scrub`
	if err == nil || err.Error() != want {
		t.Fatalf("New = %v, want %s", err, want)
	}
	g, err := New(cfg, warnings(t)) // the state was let go of
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
