//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// fakeUpstream is the configuration of a fake upstream on stdio or http.
func fakeUpstream(t *testing.T, transport, era string, more ...string) string {
	t.Helper()
	args := append([]string{"-era", era}, more...)
	if transport == "http" {
		return fmt.Sprintf("url: %q", fakeserverHTTP(t, args...))
	}
	quoted := []string{fmt.Sprintf("%q", fakeserverBin)}
	for _, a := range args {
		quoted = append(quoted, fmt.Sprintf("%q", a))
	}
	return "command: [" + strings.Join(quoted, ", ") + "]"
}

// echoAnswer accepts an elicitation with its own message, and notes it.
func echoAnswer(note func(message string)) func(m mcpclient.Message) (result, errObject json.RawMessage) {
	return func(m mcpclient.Message) (result, errObject json.RawMessage) {
		if m.ID == nil {
			return nil, nil
		}
		var p struct{ Message string }
		_ = json.Unmarshal(m.Params, &p)
		note(p.Message)
		return json.RawMessage(fmt.Sprintf(`{"action":"accept","content":{"said":%q}}`, p.Message)), nil
	}
}

// elicits makes one call that asks its host, in rounds if the era demands it, and returns the
// answer that the upstream got.
func elicits(t *testing.T, c *mcpclient.Client, ctx context.Context, tool, message string, answer func(mcpclient.Message) (json.RawMessage, json.RawMessage)) string {
	params := fmt.Sprintf(`"name":%q,"arguments":{"params":{"message":%q,"requestedSchema":{"type":"object","properties":{}}}}`, tool, message)
	next := params
	for range 10 {
		m, err := c.Call(ctx, "tools/call", "{"+next+"}")
		if err != nil || m.Error != nil {
			t.Errorf("%s: %v %s", message, err, m.Error)
			return ""
		}
		var r struct {
			ResultType    string
			InputRequests map[string]mcpclient.Message
			RequestState  json.RawMessage
			Content       []struct{ Text string }
		}
		if err := json.Unmarshal(m.Result, &r); err != nil {
			t.Errorf("%s: %v in %s", message, err, m.Result)
			return ""
		}
		if r.ResultType != "input_required" {
			if len(r.Content) != 1 {
				t.Errorf("%s: result %s", message, m.Result)
				return ""
			}
			return r.Content[0].Text
		}
		responses := map[string]json.RawMessage{}
		for key, q := range r.InputRequests {
			q.ID = json.RawMessage("1")
			responses[key], _ = answer(q)
		}
		raw, _ := json.Marshal(responses)
		next = params + `,"inputResponses":` + string(raw) + `,"requestState":` + string(r.RequestState)
	}
	t.Errorf("%s: no end of rounds", message)
	return ""
}

// crowd is how many calls ask at once.
const crowd = 64

// TestCrowdOfQuestions lets 64 calls of each of two sessions ask their host at
// the same time. No question goes to the other session, no answer to another
// call, whether the host holds a GET stream or not.
func TestCrowdOfQuestions(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"stdio legacy", "http legacy", "http legacy with GET", "stdio modern", "http modern"} {
		for _, upstream := range []string{"stdio", "http"} {
			for _, era := range []string{"legacy", "modern"} {
				t.Run(host+" on "+upstream+" "+era, func(t *testing.T) {
					t.Parallel()
					crowdAsks(t, host, fakeUpstream(t, upstream, era))
				})
			}
		}
	}
}

func crowdAsks(t *testing.T, host, upstream string) {
	ctx := testContext(t)
	g := newGateway(t, "upstreams:\n  fake: {"+upstream+"}\n")
	era := mcpclient.Legacy
	if strings.Contains(host, "modern") {
		era = mcpclient.Modern
	}
	var clients []*mcpclient.Client
	if strings.HasPrefix(host, "stdio") {
		clients = append(clients, g.stdio(era))
	} else {
		url := g.http()
		for range 2 {
			c := mcpclient.HTTP(url, era)
			g.closes(c)
			clients = append(clients, c)
		}
	}
	var calls sync.WaitGroup
	for n, c := range clients {
		var mu sync.Mutex
		asked := map[string]int{}
		answer := echoAnswer(func(message string) {
			mu.Lock()
			defer mu.Unlock()
			asked[message]++
		})
		c.Handle = answer
		c.Capabilities = `{"elicitation":{}}`
		startHost(t, ctx, c)
		if strings.HasSuffix(host, "GET") {
			if err := c.Listen(); err != nil {
				t.Fatal(err)
			}
		}
		calls.Go(func() {
			var mine sync.WaitGroup
			for i := range crowd {
				mine.Go(func() {
					message := fmt.Sprintf("session %d call %d", n, i)
					want := fmt.Sprintf(`{"action":"accept","content":{"said":%q}}`, message)
					if got := elicits(t, c, ctx, "fake__elicit", message, answer); !strings.Contains(got, want) {
						t.Errorf("%s: the upstream got %s, want %s", message, got, want)
					}
				})
			}
			mine.Wait()
			mu.Lock()
			defer mu.Unlock()
			for i := range crowd {
				if n := asked[fmt.Sprintf("session %d call %d", n, i)]; n != 1 && era == mcpclient.Legacy {
					t.Errorf("call %d was asked %d times", i, n)
				}
			}
			if len(asked) != crowd && era == mcpclient.Legacy {
				t.Errorf("session %d got %d questions, want its own %d", n, len(asked), crowd)
			}
		})
	}
	calls.Wait()
}

// A question on stdio does not say which call it is of. While calls of two
// branches are at its server, it is in neither, and no call is named as its cause.
func TestQuestionIsGuessedIntoNoBranch(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, "upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
	c := g.stdio(mcpclient.Legacy)
	answer := echoAnswer(func(string) {})
	c.Handle, c.Capabilities = answer, `{"elicitation":{}}`
	startHost(t, ctx, c)
	a, b := create(t, c, ctx, map[string]any{}), create(t, c, ctx, map[string]any{})
	asks := func(in created) {
		t.Helper()
		said(t, tool(t, c, ctx, "fake__elicit", fmt.Sprintf(`{"branch_id":%q,"params":{"message":"?"}}`, in.BranchID)))
	}
	logs := func(in created) {
		t.Helper()
		said(t, tool(t, c, ctx, "fake__log", fmt.Sprintf(`{"branch_id":%q,"params":{"level":"info","data":"x"}}`, in.BranchID)))
	}
	asks(b)
	logs(b)
	var slow sync.WaitGroup
	slow.Go(func() { // until its branch ends
		_, _ = c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__slow","arguments":{"branch_id":%q,"ms":600000}}`, a.BranchID))
	})
	for !strings.Contains(g.output("trace"), "fake slow") {
		if ctx.Err() != nil {
			t.Fatal("the slow call never began")
		}
	}
	asks(a)
	asks(b)
	logs(b)
	tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":""}`, a.BranchID))
	slow.Wait()
	asks(b)
	g.stop()
	want := []string{b.BranchID + " by 1", a.BranchID + " by 0", " by 0", b.BranchID + " by 1"}
	var got []string
	for _, r := range g.trace("--kind", "mcp/request:elicitation/create") {
		got = append(got, fmt.Sprintf("%s by %d", r.Context, len(r.CorrelationID)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("branches of the questions, and their causes (-want +got):\n%s", diff)
	}
	if n := len(g.trace("--kind", "mcp/request:elicitation/create", "--ambiguous")); n != 1 {
		t.Errorf("%d questions are ambiguous, want 1", n)
	}
	got = nil
	for _, r := range g.trace("--kind", "mcp/notification:notifications/message") {
		got = append(got, fmt.Sprintf("%s by %d", r.Context, len(r.CorrelationID)))
	}
	if diff := cmp.Diff([]string{b.BranchID + " by 1", " by 0"}, got); diff != "" {
		t.Errorf("branches of the log messages, and their causes (-want +got):\n%s", diff)
	}
}

// A question of a call in a batch is in the batch's branch, although the server does not say which call it is of. A
// call of the host that ends meanwhile does not end it.
func TestQuestionOfABatch(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\nrun: {allow: [\"fake__*\"]}\n")
	h := rawStdio(t, g.command("run"), mcpclient.Legacy)
	h.write(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"elicitation":{}},"protocolVersion":"2025-06-18","clientInfo":{"name":"raw","version":"1"}}}`)
	receive(t, h)
	h.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	h.write(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"branch_run","arguments":{"tool":"fake__elicit","each":[{"params":{"message":"which?"}}]}}}`)
	var question struct {
		ID     json.RawMessage
		Method string
	}
	if err := json.Unmarshal([]byte(receive(t, h)), &question); err != nil || question.Method != "elicitation/create" {
		t.Fatalf("the host got %+v, %v, want the question", question, err)
	}
	h.write(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fake__text","arguments":{"text":"done"}}}`)
	if got := receive(t, h); !strings.Contains(got, `"id":3`) {
		t.Errorf("the host got %s, want the answer to its own call", got)
	}
	h.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"said":"this one"}}}`, question.ID))
	if got := receive(t, h); !strings.Contains(got, `"id":2`) || !strings.Contains(got, "this one") {
		t.Errorf("the host got %s, want the batch with its answer", got)
	}
	g.stop()
	asked := g.trace("--kind", "mcp/request:elicitation/create")
	if len(asked) != 1 || !strings.HasPrefix(asked[0].Context, "br_") || len(asked[0].CorrelationID) != 1 {
		t.Errorf("the question is recorded as %+v, want it in the batch's branch, with its call", asked)
	}
}
