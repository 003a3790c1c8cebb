package proxy

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/runner"
	"github.com/foldgate/foldgate/proxy/wire"
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
	for rec := range scan(t, r.g.Start.StateDir, query.Filter{Kinds: []string{trace.KindRequest + "tools/call"}}) {
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
// names they have. Each layer relies on the ones around it, as newChain of proxy/engine says.
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
	if _, err := g.Chain(t.Context(), &interceptor.Call{Target: interceptor.Target{Method: "ping"}}, end); err != nil {
		t.Fatal(err)
	}
	want := []string{"NewChain", "savings", "Trace", "Recover", "CheckBranch", "Meter", "Fold", "Layer", "Scrub", "NewChain", t.Name()}
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

// The table in docs/design.md says which messages run down the chain.
func TestWhatRunsDownTheChain(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	watch := func(r *rig) {
		inner := r.g.router.Chain
		r.g.router.Chain = func(ctx context.Context, c *interceptor.Call, end interceptor.Handler) (*interceptor.Result, error) {
			from, _, _ := strings.Cut(c.Origin.From, ":")
			mu.Lock()
			seen[from+" "+c.Target.Method], seen[c.Target.Name] = true, true
			mu.Unlock()
			return inner(ctx, c, end)
		}
	}
	var r *rig
	up := fakeUpstream{version: "2025-11-25", caps: `{"tools":{},"logging":{}}`, serve: func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		switch name, _ := rawjson.GetString(c.Params, "name"); {
		case c.Method == "tools/list":
			return result(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
		case name == "echo":
			if again := r.exchangeID(ctx, string(c.Call.Origin.ID), "x/again", `{}`); again.Error == nil {
				t.Error("an id in use is taken")
			}
			c.Receiver.Message(wire.Message{Method: wire.MethodProgress, Params: json.RawMessage(`{}`)})
			c.Receiver.Message(wire.Message{ID: json.RawMessage(`2`), Method: "sampling/createMessage", Params: json.RawMessage(`{}`)})
			asked := <-r.push
			for ; asked.ID == nil; asked = <-r.push { // notifications
			}
			r.s.HandleResponse(wire.Message{ID: asked.ID, Result: json.RawMessage(`{}`)})
			<-l.replied
		}
		return result(`{"content":[]}`)
	}}
	r = newRig(t, false, map[string]fakeUpstream{"up": up})
	watch(r)
	r.initialize()
	r.ok("ping", `{}`)
	r.ok("logging/setLevel", `{"level":"info"}`)
	r.s.Notify(wire.Message{Method: "notifications/x"})
	r.last("up").die()
	r.tool("up__echo", `{}`)
	if restored := r.last("up").sent("logging/setLevel"); len(restored) != 1 {
		t.Errorf("the log level was restored %d times", len(restored))
	}
	r.tool("branch_run", `{"steps":[{"tool":"up__read"}]}`)
	r.g.Tools.SetModels(func(config.LLM) runner.Model { return sayingModel{} }, r.g.Chain)
	cfg := &r.g.settings.Load().Config
	cfg.LLM.API, cfg.Folding.Memory.Tool = config.APIOpenAI, "up__read"
	if said := r.tool("branch_create", `{"description":"look","run":true}`); !strings.Contains(said, "seen") {
		t.Errorf("the branch that runs by itself answers %s", said)
	}
	r = newRig(t, true, map[string]fakeUpstream{"up": echoUpstream("2025-11-25").onCall(func(ctx context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.Message(wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
		<-ctx.Done()
		return wire.Message{}, context.Cause(ctx)
	})})
	watch(r)
	if one := r.ok("tools/call", `{"name":"up__echo","arguments":{},`+elicitMeta+`}`); !strings.Contains(one, "elicitation/create") {
		t.Errorf("the modern host is not asked: %s", one)
	}
	mu.Lock()
	defer mu.Unlock()
	page, err := os.ReadFile("../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## What runs down the chain")
	table, _, _ = strings.Cut(table, "\n## ")
	for row, message := range map[string]string{
		"request of a host": "host ping", "call of a batch (`branch_run`)": "read", "page of a list that foldgate reads": "foldgate tools/list",
		"request of a server to a legacy host": "upstream sampling/createMessage", "request of a server to a modern host": "upstream elicitation/create",
		"`ping` of a server": "upstream ping", "foldgate's own request to a server": "foldgate logging/setLevel",
		"notification of a host": "host notifications/x", "notification of a server": "upstream notifications/progress",
		"request with an id that is in use": "host x/again", "request to the model of a branch that runs by itself": "foldgate sampling/createMessage",
		"call of foldgate for the memories of a branch": "foldgate tools/call",
	} {
		want := map[bool]string{true: "yes", false: "no"}[seen[message]]
		if !strings.Contains(table, "| "+row+" | "+want+" |") {
			t.Errorf("docs/design.md does not say that a %s (%s) runs down the chain: %s", row, message, want)
		}
	}
	if rows := strings.Count(table, " | yes | ") + strings.Count(table, " | no | "); rows != 12 {
		t.Errorf("the table has %d rows, and the test 12", rows)
	}
}

// sayingModel says one thing.
type sayingModel struct{}

func (sayingModel) Turn(context.Context, *runner.Request) (runner.Reply, error) {
	return runner.Reply{Message: runner.Message{Role: "assistant", Content: []runner.Block{runner.TextBlock("seen")}}}, nil
}

// logging/setLevel starts no server. One that is started later gets the level: over a connection of the session's own
// before anything else, over one that is shared, whose view keeps the level, with each call.
func TestSetLevelStartsNothing(t *testing.T) {
	for share, told := range map[string]struct{ version, method, text string }{
		"session": {"2025-11-25", "logging/setLevel", `"level":"info"`}, "principal": {"2026-07-28", "tools/call", `logLevel":"info"`},
	} {
		up := echoUpstream(told.version)
		up.caps = `{"tools":{},"logging":{}}`
		synctest.Test(t, func(t *testing.T) {
			r := newRigWith(t, false, map[string]fakeUpstream{"up": up}, func(c *config.Config) { c.Upstreams["up"].Share = share })
			r.initialize()
			r.tool("up__echo", `{}`)
			before := r.last("up")
			before.die()
			synctest.Wait()
			r.ok("logging/setLevel", `{"level":"info"}`)
			if r.last("up") != before {
				t.Errorf("share %s: logging/setLevel starts a server, want none", share)
			}
			r.tool("up__echo", `{}`)
			if got := r.last("up").sent(told.method); r.last("up") == before || len(got) != 1 || !strings.Contains(string(got[0]), told.text) {
				t.Errorf("share %s: the server that the call starts gets %s, want one with %s", share, got, told.text)
			}
			r.close()
		})
	}
}

// A server that does not answer logging/setLevel keeps neither the others nor the host's answer.
func TestSetLevelAtADeafServer(t *testing.T) {
	ups := map[string]fakeUpstream{"a": echoUpstream("2025-11-25"), "b": echoUpstream("2025-11-25")}
	for key, up := range ups {
		rest := up.serve
		up.caps = `{"tools":{},"logging":{}}`
		up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
			if c.Method == "logging/setLevel" && key == "a" {
				<-ctx.Done()
				return wire.Message{}, context.Cause(ctx)
			}
			return rest(ctx, l, c)
		}
		ups[key] = up
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, ups)
		r.initialize()
		r.tool("a__echo", `{}`)
		r.tool("b__echo", `{}`)
		began := time.Now()
		r.ok("logging/setLevel", `{"level":"info"}`) // else the bubble deadlocks
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the host waits %v", took)
		}
		if got := r.last("b").sent("logging/setLevel"); len(got) != 1 {
			t.Errorf("the other server got %s", got)
		}
		r.close()
		if log := r.warnings.String(); !strings.Contains(log, "keeps its log level") {
			t.Errorf("the log: %s", log)
		}
		r = newRig(t, true, ups)
		r.ok("tools/call", `{"name":"a__echo","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/logLevel":"info"}}`)
		if r.last("a").sent("logging/setLevel") == nil {
			t.Error("a is not told the level of a modern host's call")
		}
		r.close()
	})
}
