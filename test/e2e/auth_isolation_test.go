//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// refusedAlike makes the same call with a known and with an unknown value and
// demands the same answer, but for the value itself.
func refusedAlike(t *testing.T, c *mcpclient.Client, ctx context.Context, name, args, known, unknown string) {
	t.Helper()
	answer := func(value string) string {
		m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, strings.ReplaceAll(args, "ID", value)))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(m.Result)+string(m.Error), value, "ID")
	}
	theirs, nobodys := answer(known), answer(unknown)
	if theirs != nobodys {
		t.Errorf("%s %s: of another's id bob reads %s, of an unknown one %s", name, args, theirs, nobodys)
	}
	if !strings.Contains(theirs, `"isError":true`) && !strings.Contains(theirs, "No active branch found") {
		t.Errorf("%s %s by bob = %s, want a refusal", name, args, theirs)
	}
}

const (
	unknownResult  = "res_00000000000000000000000000"
	unknownContext = "ctx_1795236303_aaaaaaaaaaaaaaaaaaaaaaaaaa"
)

// bob does not learn that alice's branches, session, results, batches and workflows exist (vector
// W6).
func TestPrincipalsAreAlone(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx, file := testContext(t), recordFile(t)
			g := newGateway(t, principals()+strings.Replace(signalsConfig(file, ""), "results: {tools: {\"signals__*\": {fold: off}}}",
				fmt.Sprintf("  fake: {command: [%q, -era, both]}\nresults: {main_threshold: 500}\nrun: {allow: [\"fake__*\"]}", fakeserverBin), 1))
			url := g.http()
			alice, bob := g.as(t, url, era, "alice"), g.as(t, url, era, "bob")
			b := own[created](t, tool(t, alice, ctx, "branch_create", `{"description":"hers"}`))
			result := handleIn(t, said(t, tool(t, alice, ctx, "fake__huge", `{"bytes":40000}`)))
			batch := handleIn(t, said(t, tool(t, alice, ctx, "branch_run", `{"tool":"fake__text","each":[{"text":"one"},{"text":"two"}]}`)))
			flowID := opened(t, alice, ctx, "get_signals", map[string]string{"signal_spec": "luxury"})
			step := opened(t, alice, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_luxury", "platform": "dsp", "context_id": flowID})

			session := b.SessionID
			if session == "" { // her connection's own
				session = alice.Session()
			}
			used := statusOf(t, alice, ctx, b.BranchID).BudgetUsed
			for _, name := range []string{"branch_status", "branch_create", "branch_return", "fake__echo"} {
				args := map[string]string{
					"branch_status": `{"branch_id":"ID"}`, "branch_create": `{"description":"below hers","parent_branch_id":"ID"}`,
					"branch_return": `{"branch_id":"ID","message":"mine now"}`, "fake__echo": `{"branch_id":"ID"}`,
				}[name]
				refusedAlike(t, bob, ctx, name, args, b.BranchID, unknownBranch)
			}
			refusedAlike(t, bob, ctx, "branch_status", `{"session_id":"ID"}`, session, "ses_00000000-0000-4000-8000-000000000000")
			for _, handle := range []string{result, batch} {
				refusedAlike(t, bob, ctx, "branch_read", `{"handle":"ID"}`, handle, unknownResult)
				refusedAlike(t, bob, ctx, "branch_read", `{"handle":"ID","grep":"word"}`, handle, unknownResult)
			}
			before := len(recorded(t, file))
			for _, handle := range []string{flowID, step} {
				for name, args := range map[string]string{
					"get_signals": `{"signal_spec":"any","context_id":"ID"}`, "activate_signal": `{"signals_agent_segment_id":"sig_luxury","context_id":"ID"}`,
					"check_signal_status": `{"signals_agent_segment_id":"sig_luxury","context_id":"ID"}`, "end_campaign": `{"context_id":"ID"}`,
				} {
					refusedAlike(t, bob, ctx, "signals__"+name, args, handle, unknownContext)
				}
			}
			if after := len(recorded(t, file)); after != before {
				t.Errorf("%d calls with alice's handles reached the server", after-before)
			}
			// Neither a value of her results nor her session's last workflow leads bob to her
			// workflow.
			if r := flow(t, bob, ctx, "activate_signal", map[string]string{"signals_agent_segment_id": "sig_luxury"}); r.handle() != "" {
				t.Errorf("a value of alice's results leads bob to %s", r.handle())
			}
			// A branch of bob's in a session that he names like hers is in another session.
			mine := own[created](t, tool(t, bob, ctx, "branch_create", fmt.Sprintf(`{"description":"his","session_id":%q}`, session)))
			if mine.Depth != 1 || strings.Contains(mine.path(), b.BranchID) {
				t.Errorf("bob's branch in the session that he named = %+v", mine)
			}
			if s := statusOf(t, alice, ctx, b.BranchID); s.Status != "active" || s.BudgetUsed != used {
				t.Errorf("alice's branch after all that = %+v, want it untouched", s)
			}
			// And she still reaches all of it, from any connection of hers.
			again := g.as(t, url, era, "alice")
			if r := flow(t, again, ctx, "check_signal_status", map[string]string{"signals_agent_segment_id": "sig_luxury", "context_id": flowID}); r.handle() != step {
				t.Errorf("alice on another connection = %+v, want step %s", r, step)
			}
			if text := said(t, readPart(t, again, ctx, map[string]any{"handle": result, "grep": "word"})); !strings.Contains(text, "word") {
				t.Errorf("alice reads of her result %.200q", text)
			}
			own[returned](t, tool(t, again, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": "done"})))
			g.stop()
			for _, r := range g.flows("--principal", "bob", "--evidence", "join,session,explicit,native") {
				t.Errorf("a record of bob's is in a workflow: %s %+v", r.Kind, r.Audit.Workflow)
			}
		})
	}
}

// The state directory often lies below a root of the built-in file server, and
// holds the calls of every principal. No tool of that server shows it.
func TestFilesDoNotShowTheState(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, principals()+"upstreams:\n  files: {builtin: files, roots: [.]}\n")
	write(t, filepath.Join(g.dir, "notes.txt"), "what alice looks for\n")
	url := g.http()
	alice, bob := g.as(t, url, mcpclient.Legacy, "alice"), g.as(t, url, mcpclient.Legacy, "bob")
	said(t, tool(t, alice, ctx, "files__grep", `{"pattern":"alice looks"}`))
	if journal, err := os.ReadFile(filepath.Join(g.dir, "state", "trace", "trace-000000000000001.jsonl")); err != nil || !strings.Contains(string(journal), "alice looks") {
		t.Fatalf("her call is not in the trace (%v):\n%s", err, journal)
	}
	for name, args := range map[string]string{"files__list_directory": `{}`, "files__search_files": `{"pattern":"**"}`, "files__grep": `{"pattern":"alice looks"}`} {
		if got := said(t, tool(t, bob, ctx, name, args)); strings.Contains(got, "state") {
			t.Errorf("%s shows bob %s", name, got)
		}
	}
	m := tool(t, bob, ctx, "files__read_file", `{"path":"state/trace/trace-000000000000001.jsonl"}`)
	if got := string(m.Result); !strings.Contains(got, `"isError":true`) || !strings.Contains(got, "foldgate's own and may not be read") {
		t.Errorf("of the trace bob reads %s", got)
	}
}

// The trace of a branch holds the calls in it, and no others, however a host labels them. A
// context of the host's own goes below the branch of the call.
func TestNobodyForgesAContext(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, principals()+fakeConfig(recordFile(t), ""))
	url := g.http()
	alice, bob := g.as(t, url, mcpclient.Legacy, "alice"), g.as(t, url, mcpclient.Legacy, "bob")
	b := own[created](t, tool(t, alice, ctx, "branch_create", `{"description":"hers"}`))
	echo := func(c *mcpclient.Client, args, context string) mcpclient.Message {
		return call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__echo","arguments":%s,"_meta":{"io.github.foldgate/context":%q}}`, args, context))
	}
	for _, forged := range []string{b.BranchID, b.BranchID + "/notes", "notes/" + b.BranchID, "br_notes"} {
		for who, c := range map[string]*mcpclient.Client{"alice": alice, "bob": bob} {
			if f := refused(t, echo(c, `{"branch_id":""}`, forged)); f.Error.Code != "invalid_context" {
				t.Errorf("%s in the context %s reads %+v", who, forged, f)
			}
		}
	}
	said(t, echo(alice, fmt.Sprintf(`{"branch_id":%q}`, b.BranchID), "notes"))
	said(t, echo(bob, `{}`, "notes"))
	said(t, call(t, alice, ctx, "tools/call", `{"name":"fake__echo","arguments":{},"_meta":{"io.github.foldgate/context":{"id":"late","parent":"notes"}}}`))
	g.stop()
	if out := g.output("trace", "--context", b.BranchID, "--tree", "--principal", "bob", "--format", "jsonl"); out != "" {
		t.Errorf("bob's records in alice's branch:\n%s", out)
	}
	if out := g.output("trace", "--context", b.BranchID+"/notes/late", "--deprecated", "--format", "jsonl"); strings.Count(out, `"deprecated":["context_object"]`) != 2 {
		t.Errorf("a call in a context given as an object:\n%s\nwant a request and a response, marked", out)
	}
	if out := g.output("trace", "--context", b.BranchID+"/notes", "--format", "jsonl"); strings.Count(out, "\n") != 2 {
		t.Errorf("a call in alice's own context:\n%s\nwant a request and a response", out)
	}
}

// An upstream may keep any state for a connection, so principals share no connection: no process,
// no list, no notification and no server request.
func TestPrincipalsShareNoConnection(t *testing.T) {
	t.Parallel()
	for _, upstream := range []string{"legacy", "modern"} {
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			t.Run(string(era)+" on "+upstream, func(t *testing.T) {
				ctx := testContext(t)
				g := newGateway(t, principals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", upstream)+"}\n")
				url := g.http()
				var hers, his noted
				alice, bob := mcpclient.HTTP(url, era, "Authorization", "Bearer "+tokenOf["alice"]), mcpclient.HTTP(url, era, "Authorization", "Bearer "+tokenOf["bob"])
				for c, heard := range map[*mcpclient.Client]*noted{alice: &hers, bob: &his} {
					c.Capabilities = `{"elicitation":{}}`
					c.Handle = heard.handle(echoAnswer(func(string) {}))
					startHost(t, ctx, c)
					g.closes(c)
					call(t, c, ctx, "tools/list", `{}`)
					if era == mcpclient.Modern {
						listens(t, c, `{"toolsListChanged":true,"resourceSubscriptions":["fake://a"]}`)
						until(t, "listen is acknowledged", func() bool { return heard.has("acknowledged") == 1 })
					} else {
						if err := c.Listen(); err != nil {
							t.Fatal(err)
						}
						call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
					}
				}
				a, b := text(t, alice, ctx, "fake__pid", `{}`), text(t, bob, ctx, "fake__pid", `{}`)
				if a == b {
					t.Errorf("alice and bob share the process %s", a)
				}
				if era == mcpclient.Modern {
					if again := text(t, g.as(t, url, era, "alice"), ctx, "fake__pid", `{}`); again != a {
						t.Errorf("two hosts of alice have the processes %s and %s, want one", a, again)
					}
				}
				until(t, "alice hears of her changes", func() bool { // foldgate's own subscription may be a moment late
					tool(t, alice, ctx, "fake__touch", `{}`)
					tool(t, alice, ctx, "fake__list_changed", `{}`)
					return hers.has("resources/updated") > 0 && hers.has("tools/list_changed") > 0
				})
				call(t, alice, ctx, "tools/call", `{"name":"fake__progress","arguments":{"count":3,"text":"hers"},"_meta":{"progressToken":"same"}}`)
				tool(t, bob, ctx, "fake__echo", `{}`) // what was on its way to bob has arrived
				if n := his.has("updated|list_changed|progress|hers"); n > 0 {
					t.Errorf("bob heard %v", his.list)
				}
				// The tool that alice's upstream has made is not in bob's list.
				for !strings.Contains(string(call(t, alice, ctx, "tools/list", `{}`).Result), `"fake__extra"`) {
					tool(t, alice, ctx, "fake__list_changed", `{}`)
				}
				if list := string(call(t, bob, ctx, "tools/list", `{}`).Result); strings.Contains(list, "fake__extra") {
					t.Errorf("bob's list has what alice's upstream made")
				} else if era == mcpclient.Modern && !strings.Contains(list, `"cacheScope":"private"`) {
					t.Errorf("a list that depends on the token may be cached for all: %.100s", list)
				}
			})
		}
	}
}

// What alice's upstream lists because of her calls, and her resources, are in no list of bob's: not in the first one
// that he gets, nor in the first one after a restart.
func TestStoredListsStayWithTheirPrincipal(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			g := newGateway(t, principals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
			stored := func() string {
				text, _ := os.ReadFile(filepath.Join(g.dir, "state", "upstreams.json"))
				return string(text)
			}
			lists := func(c *mcpclient.Client) string {
				return string(call(t, c, ctx, "tools/list", `{}`).Result) + string(call(t, c, ctx, "resources/list", `{}`).Result)
			}
			url := g.http()
			alice := g.as(t, url, era, "alice")
			tool(t, alice, ctx, "fake__raw", `{"result":{"content":[]},"answers":{"resources/list":{"result":{"resources":[{"uri":"fake://plan","name":"her-private-plan"}]}}}}`)
			until(t, "her lists are stored", func() bool {
				if has := lists(alice); !strings.Contains(has, "fake__extra") {
					tool(t, alice, ctx, "fake__list_changed", `{}`)
				}
				return strings.Contains(stored(), `"extra"`) && strings.Contains(stored(), "her-private-plan")
			})
			for round := range 2 {
				if round > 0 {
					g.stop()
					url = g.http()
				}
				if got := lists(g.as(t, url, era, "bob")); strings.Contains(got, "fake__extra") || strings.Contains(got, "her-private-plan") || !strings.Contains(got, "fake__echo") {
					t.Errorf("start %d: the first lists of bob's: %s", round+1, got)
				}
			}
			if got := lists(g.as(t, url, era, "alice")); !strings.Contains(got, "her-private-plan") {
				t.Errorf("alice's first lists after the restart: %s", got)
			}
		})
	}
}

// The ticket of a question that waits for alice's answer is worth nothing in
// bob's hands, and her question stays hers.
func TestSuspendedCallOfAnother(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, principals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
	url := g.http()
	alice, bob := g.as(t, url, mcpclient.Modern, "alice"), g.as(t, url, mcpclient.Modern, "bob")
	const ask = `"name":"fake__elicit","arguments":{"params":{"message":"who?","requestedSchema":{"type":"object","properties":{}}}}`
	m := call(t, alice, ctx, "tools/call", "{"+ask+"}")
	var r struct {
		InputRequests map[string]json.RawMessage
		RequestState  string
	}
	if err := json.Unmarshal(m.Result, &r); err != nil || len(r.InputRequests) != 1 || r.RequestState == "" {
		t.Fatalf("elicit = %s, want one question", m.Result)
	}
	answers := func(state string) string {
		for key := range r.InputRequests {
			return fmt.Sprintf(`{%s,"inputResponses":{%q:{"action":"accept","content":{"said":"me"}}},"requestState":%q}`, ask, key, state)
		}
		return ""
	}
	theirs := call(t, bob, ctx, "tools/call", answers(r.RequestState))
	nobodys := call(t, bob, ctx, "tools/call", answers("foldgate-suspended:NOBODYS"))
	if f := refused(t, theirs); f.Error.Code != "request_state_unknown" || string(theirs.Result) != string(nobodys.Result) {
		t.Errorf("bob's answer to alice's question = %s, to none %s", theirs.Result, nobodys.Result)
	}
	if got := said(t, call(t, alice, ctx, "tools/call", answers(r.RequestState))); !strings.Contains(got, `"said":"me"`) {
		t.Errorf("alice's own answer = %s", got)
	}
	if status, _, body := answered(t, http.DefaultClient, "GET", url, "", http.Header{"Authorization": {"Bearer " + tokenOf["bob"]}, "Last-Event-Id": {"1-1"}}); status != 400 {
		t.Errorf("resuming a stream without a session = %d %s", status, body)
	}
}

// A server request of a legacy stdio server does not name its call. However foldgate attributes
// it, it never goes to another principal.
func TestQuestionsStayWithTheirPrincipal(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, principals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
	url := g.http()
	var all sync.WaitGroup
	for who := range tokenOf {
		c := g.as(t, url, mcpclient.Modern, who)
		answer := echoAnswer(func(message string) {
			if !strings.HasPrefix(message, who) {
				t.Errorf("%s was asked %q", who, message)
			}
		})
		for i := range 32 {
			all.Go(func() { elicits(t, c, ctx, "fake__elicit", fmt.Sprintf("%s call %d", who, i), answer) })
		}
	}
	all.Wait()
}
