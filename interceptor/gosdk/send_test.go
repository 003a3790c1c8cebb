package gosdk

//lint:file-ignore SA1019 what the protocol deprecates still has to be scrubbed and charged

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/test/fixtures"
)

// talk is a tool that sends what its arguments say.
type talk struct {
	Notify, Ask, Bytes int
}

// talker returns a server with the tool talk. It counts the notifications that went out, and the
// questions that were answered.
func talker(p plan, sent, answered *atomic.Int64) *mcp.Server {
	s := p.server()
	mcp.AddTool(s, &mcp.Tool{Name: "talk"}, func(ctx context.Context, req *mcp.CallToolRequest, in talk) (*mcp.CallToolResult, any, error) {
		var last error
		for range in.Notify {
			if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1, Message: strings.Repeat("some words ", in.Bytes/11)}); err != nil {
				last = err
			} else {
				sent.Add(1)
			}
		}
		for range in.Ask {
			if _, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "sure? " + strings.Repeat("some words ", in.Bytes/11), RequestedSchema: &jsonschema.Schema{Type: "object"}}); err != nil {
				last = err
			} else {
				answered.Add(1)
			}
		}
		if last != nil {
			last = fmt.Errorf("talk: %v", last) // a tool error, whatever it was
		}
		return said("done"), nil, last
	})
	return s
}

// talk calls the tool talk.
func (r *rig) talk(in talk, branchID string) *mcp.CallToolResult {
	r.t.Helper()
	args := map[string]any{"Notify": in.Notify, "Ask": in.Ask, "Bytes": in.Bytes}
	if branchID != "" {
		args["branch_id"] = branchID
	}
	p := &mcp.CallToolParams{Name: "talk", Arguments: args, Meta: mcp.Meta{}}
	p.SetProgressToken(7)
	res, err := r.c.CallTool(r.t.Context(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// Of a server that sends without end, the client gets every notification and the trace a burst and
// then the number of the others. Of its questions, those over the rate are refused.
func TestFlood(t *testing.T) {
	p := plan{State: filepath.Join(t.TempDir(), "state"), Era: legacy}
	fg := embed(t, p, nil)
	var sent, answered atomic.Int64
	r := inMemory(t, mount(talker(p, &sent, &answered), fg))
	const flood, asked = 10_000, 1300
	r.talk(talk{Notify: flood, Bytes: 110}, "")
	if sent.Load() != flood {
		t.Errorf("%d notifications went out, want %d", sent.Load(), flood)
	}
	if res := r.talk(talk{Ask: asked}, ""); !strings.Contains(text(res), "four times a second") {
		t.Errorf("%d questions: %s", asked, text(res))
	}
	if n := answered.Load(); n < 1000 || n > asked-10 {
		t.Errorf("%d of %d questions reached the client, want 1000 and a few", n, asked)
	}
	r.close()
	_ = fg.Close()
	recorded, leftOut, refused := 0, 0, 0
	for rec := range scan(t, p.State, query.Filter{}) {
		switch a := rec.AuditOrEmpty(); {
		case rec.Kind == trace.KindNotification+"notifications/progress":
			recorded++
		case a.Decision != nil && a.Decision.Rule == "requests_refused":
			refused += a.LeftOut
		default:
			leftOut += a.LeftOut
		}
	}
	if recorded+leftOut != flood || recorded > flood*9/10 {
		t.Errorf("%d notifications recorded and %d left out, want %d in all, and many left out", recorded, leftOut, flood)
	}
	if refused != asked-int(answered.Load()) {
		t.Errorf("%d refused questions are recorded, want %d", refused, asked-int(answered.Load()))
	}
}

// What a server sends during the call of a tool counts as use of the tool: its limit pays for it, and
// what the limit lacks is not sent, while the branch keeps its tokens.
func TestToolLimitsCountWhatIsSent(t *testing.T) {
	for what, in := range map[string]talk{"notification": {Notify: 1, Bytes: 2200}, "question": {Ask: 1, Bytes: 2200}} {
		t.Run(what, func(t *testing.T) {
			p := plan{Era: legacy}
			var sent, answered atomic.Int64
			fg := embed(t, p, func(o *Options) {
				o.Config.Budgets.Limits = []limits.Limit{{Name: "talk", Per: "session", Match: limits.Match{Tool: "talk"}, Tokens: 300}}
			})
			r := inMemory(t, mount(talker(p, &sent, &answered), fg))
			b := own[branch](r, "branch_create", `{"description":"work","budget":5000}`).BranchID
			r.talk(in, b)
			if n := sent.Load() + answered.Load(); n > 0 {
				t.Errorf("a message of 400 tokens went out, and the limit of the tool is 300")
			}
			if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.Status != "active" || s.BudgetUsed > 300 {
				t.Errorf("the branch %+v paid for what the limit refused", s)
			}
		})
	}
}

// A server may ask the client when the client tells it something: no call is the cause.
func TestQuestionOnANotification(t *testing.T) {
	s := mcp.NewServer(&mcp.Implementation{Name: "tester"}, &mcp.ServerOptions{
		SupportedProtocolVersions: []string{legacy},
		RootsListChangedHandler: func(ctx context.Context, req *mcp.RootsListChangedRequest) {
			roots, err := req.Session.ListRoots(ctx, nil)
			_ = req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "error", Data: fmt.Sprintf("roots: %d %v", len(roots.Roots), err)})
		},
	})
	mount(s, embed(t, plan{}, nil))
	here, there := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	client := mcp.NewClient(&mcp.Implementation{Name: "host"}, &mcp.ClientOptions{LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
		line, _ := json.Marshal(req.Params.Data)
		said <- string(line)
	}})
	c, err := client.Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		t.Fatal(err)
	}
	client.AddRoots(&mcp.Root{URI: "file:///a", Name: "a"})
	if got := <-said; !strings.Contains(got, "roots: 1 ") {
		t.Errorf("the server got %s", got)
	}
}

// What a server sends of its own, outside of a call, is scrubbed and recorded; no branch pays for it.
func TestMessageOutsideOfACall(t *testing.T) {
	secret := fixtures.Secret()
	p := plan{Secret: secret, Era: legacy, State: filepath.Join(t.TempDir(), "state")}
	fg := embed(t, p, nil)
	s := mount(p.server(), fg)
	r := inMemory(t, s)
	r.plan = p
	if err := r.c.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 1)
	r.said = func(_ string, params any) {
		line, _ := json.Marshal(params)
		heard <- string(line)
	}
	b := own[branch](r, "branch_create", `{"description":"work"}`)
	before := own[branch](r, "branch_status", `{"branch_id":"`+b.BranchID+`"}`).BudgetUsed
	for ss := range s.Sessions() {
		if err := ss.Log(context.Background(), &mcp.LoggingMessageParams{Level: "error", Data: "token " + secret}); err != nil {
			t.Error(err)
		}
	}
	if got := <-heard; !strings.Contains(got, "[REDACTED:") {
		t.Errorf("the client heard %s", got)
	}
	if after := own[branch](r, "branch_status", `{"branch_id":"`+b.BranchID+`"}`).BudgetUsed; after != before {
		t.Errorf("the branch paid %d tokens", after-before)
	}
	r.close()
	_ = fg.Close()
	if n := records(t, p.State)[trace.KindNotification+"notifications/message"]; n != 1 {
		t.Errorf("%d messages are recorded, want 1", n)
	}
	r.keepsSecret(secret)
}
