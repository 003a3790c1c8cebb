package proxy

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// The chain charges, scrubs and records a call.
func TestChain(t *testing.T) {
	const secret = "ghp_x7Kd9QmZ2bx7Kd9QmZ2bx7Kd9QmZ2bx7Kd9Q"
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	id, _ := rawjson.GetString([]byte(r.tool("branch_create", `{"description":"d"}`)), "structuredContent", "branch_id")
	before := r.budgetUsed(id)
	answer := r.tool("up__echo", `{"x":"github_token = `+secret+`","branch_id":"`+id+`"}`)
	if used := r.budgetUsed(id); used <= before {
		t.Errorf("budget_used = %d after the call, want more than %d", used, before)
	}
	if strings.Contains(answer, secret) {
		t.Errorf("not scrubbed: %s", answer)
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
	if records == 0 {
		t.Error("the journal holds no call")
	}
}

// A call passes the layers in this order: the stack of the handler behind them shows it, whatever
// names they have. Each layer relies on the ones around it, as newChain says.
func TestOrderOfTheLayers(t *testing.T) {
	cfg := flowConfig(nil) // else there is no layer for workflows
	cfg.StateDir = t.TempDir()
	g, err := New(cfg, warnings(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	var inward []string
	end := func(context.Context, *interceptor.Call) (*interceptor.Result, error) {
		callers := make([]uintptr, 100)
		frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers)])
		for frame, more := frames.Next(); more; frame, more = frames.Next() {
			if name, _, closure := strings.Cut(frame.Function, ".func"); closure {
				inward = append(inward, name[strings.LastIndexByte(name, '.')+1:])
			}
		}
		slices.Reverse(inward)
		return &interceptor.Result{Body: []byte(`{}`)}, nil
	}
	if _, err := g.router.Chain(t.Context(), &interceptor.Call{Target: interceptor.Target{Method: "ping"}}, end); err != nil {
		t.Fatal(err)
	}
	want := []string{"NewChain", "savings", "Trace", "Recover", "Attribute", "Meter", "Fold", "Middleware", "Scrub", "NewChain", t.Name()}
	if diff := cmp.Diff(want, inward); diff != "" {
		t.Errorf("order of the layers, outermost first (-want +got):\n%s", diff)
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
