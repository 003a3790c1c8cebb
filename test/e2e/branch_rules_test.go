//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// A session_id that is required is listed as required, and the refusal of a call without it names
// one that serves.
func TestRequiredSessionID(t *testing.T) {
	t.Parallel()
	for _, validation := range []string{"permissive", "strict"} {
		everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), "folding: {require_session_id: true, session_validation: "+validation+"}\n"))
			c := g.connect(ctx, transport, era)
			var list struct {
				Tools []struct {
					Name        string
					InputSchema struct{ Required []string }
				}
			}
			unmarshal(t, call(t, c, ctx, "tools/list", `{}`).Result, &list)
			for _, tool := range list.Tools {
				if tool.Name == "branch_create" && !slices.Equal(tool.InputSchema.Required, []string{"description", "session_id"}) {
					t.Errorf("branch_create requires %v", tool.InputSchema.Required)
				}
			}
			f := refused(t, tool(t, c, ctx, "branch_create", `{"description":"d"}`))
			if validation == "strict" && transport == "http" && era == mcpclient.Modern {
				if f.Error.Code != "forbidden" || !strings.Contains(f.Error.Message, "use a connection that keeps a session") {
					t.Errorf("without a session branch_create = %+v", f.Error)
				}
				return
			}
			_, id, ok := strings.Cut(f.Error.Message, "session_id is missing: it is required here; give session_id ")
			if !ok || f.Error.Status != 400 {
				t.Fatalf("branch_create without session_id = %+v", f.Error)
			}
			b := create(t, c, ctx, map[string]any{"session_id": strings.Trim(id, `"`)})
			if f := refused(t, tool(t, c, ctx, "branch_create", jsonText(map[string]any{"description": "d", "parent_branch_id": b.BranchID, "session_id": "other"}))); !strings.Contains(f.Error.Message, "give session_id "+id) {
				t.Errorf("below a branch of another session: %+v, want the parent's %s named", f.Error, id)
			}
		})
	}
}

// With several principals none takes more than half of the places that others leave, whatever its
// sessions.
func TestHalfOfTheBranches(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, principals()+fakeConfig(recordFile(t), "folding: {max_branches_per_minute: 1000, max_concurrent_per_instance: 7}\n"))
	url := g.http()
	for n, who := range []string{"alice", "bob"} {
		places := 3 - n // of 7, and of the 4 that alice leaves
		for i := range 5 {
			m := tool(t, g.as(t, url, mcpclient.Legacy, who), ctx, "branch_create", `{"description":"d"}`)
			if i < places {
				own[created](t, m)
			} else if f := refused(t, m); f.Error.Code != "instance_full" || f.Error.Status != 429 || f.Error.RetryAfter < 1 {
				t.Errorf("creation %d of %s = %+v", i+1, who, f.Error)
			}
		}
	}
}

// A host may use all levels of its own contexts, whether or not a branch is open.
func TestHostContextInABranch(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "folding: {max_depth: 5}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	echo := func(context string) mcpclient.Message {
		return call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__echo","arguments":{},"_meta":{"io.github.foldgate/context":%q}}`, context))
	}
	const five = "a/b/c/d/e"
	long := strings.Repeat("a", 255)
	want := []string{}
	parent := ""
	for depth := range 6 { // 0 is main
		if depth > 0 {
			b := create(t, c, ctx, map[string]any{"parent_branch_id": parent, "timeout_seconds": 60})
			if parent == "" {
				b.Context = b.BranchID
			}
			parent = b.BranchID
			want = append(want, b.path()+"/"+five, b.path()+"/"+long)
		} else {
			want = append(want, five, long)
		}
		said(t, echo(five))
		said(t, echo(long))
		if f := refused(t, echo(five+"/f")); f.Error.Code != "invalid_context" || !strings.Contains(f.Error.Message, "6 levels; at most 5") {
			t.Errorf("six levels below %d branches: %+v", depth, f.Error)
		}
		if f := refused(t, echo(long+"a")); f.Error.Code != "invalid_context" {
			t.Errorf("256 bytes below %d branches: %+v", depth, f.Error)
		}
	}
	g.stop()
	for _, path := range want {
		if n := len(g.trace("--context", path)); n != 2 {
			t.Errorf("the trace has %d records in %s, want request and response", n, path)
		}
	}
}

// The parent reads, once, what another connection returned.
func TestReturnedElsewhere(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	url := g.http()
	start := func() *mcpclient.Client {
		c := g.dial(ctx, url, mcpclient.Legacy)
		return c
	}
	parent, sub := start(), start()
	message := func(c *mcpclient.Client, id string) string {
		return own[struct{ Message string }](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": id}))).Message
	}
	b := create(t, parent, ctx, map[string]any{}).BranchID
	own[returned](t, tool(t, sub, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"it is in p.go"}`, b)))
	for _, read := range []struct {
		c    *mcpclient.Client
		want string
	}{{sub, ""}, {parent, "it is in p.go"}, {parent, ""}} {
		if got := message(read.c, b); got != read.want {
			t.Errorf("branch_status has the message %q, want %q", got, read.want)
		}
	}
	b = create(t, parent, ctx, map[string]any{}).BranchID
	own[returned](t, tool(t, parent, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"it is in p.go"}`, b)))
	if got := message(parent, b); got != "" {
		t.Errorf("who returned a branch reads %q again", got)
	}
}

// A call that names its branch reads a result of main or of a branch above only if the branch was
// given its handle.
func TestGivenResults(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		dir := t.TempDir()
		write(t, filepath.Join(dir, "long"), strings.Repeat("one line of many\n", 4000))
		g := newGateway(t, filesConfig(dir, "folding: {max_branches_per_minute: 1000, max_concurrent_per_session: 100}\nresults: {main_threshold: 500}\n"))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		ofMain := handleIn(t, said(t, readFile(t, c, ctx, "long", "")))
		parent := create(t, c, ctx, map[string]any{})
		ofParent := handleIn(t, said(t, readFile(t, c, ctx, "long", parent.BranchID)))
		read := func(handle, branch string) mcpclient.Message {
			return readPart(t, c, ctx, map[string]any{"handle": handle, "lines": "1", "branch_id": branch})
		}
		for place, handle := range map[string]string{"": ofMain, parent.BranchID: ofParent} {
			for how, args := range map[string]map[string]any{
				"not": {}, "handles": {"handles": []string{unknownResult, handle}}, "description": {"description": "sum up " + handle}, "prompt": {"prompt": "Sum up " + handle + "."},
			} {
				if args["parent_branch_id"] = place; place == "" {
					delete(args, "parent_branch_id")
				}
				b := create(t, c, ctx, args)
				switch m := read(handle, b.BranchID); {
				case how != "not" && said(t, m) != "one line of many":
					t.Errorf("given by %s, below %q: %s", how, place, m.Result)
				case how == "not":
					if f := refused(t, m); f.Error.Status != 403 || !strings.Contains(f.Error.Message, "handles, description or prompt of branch_create") {
						t.Errorf("not given, below %q: %+v", place, f.Error)
					}
				}
				own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":""}`, b.BranchID)))
			}
		}
		if got := said(t, read(ofParent, parent.BranchID)); got != "one line of many" {
			t.Errorf("a branch reads of its own result %q", got)
		}
		for _, handle := range []string{ofMain, ofParent} { // the parent's own way
			if got := said(t, readPart(t, c, ctx, map[string]any{"handle": handle, "lines": "1"})); got != "one line of many" {
				t.Errorf("without branch_id %q is read", got)
			}
		}
	})
}

// The log tells of each branch when it begins and how it ends, and nothing that an agent wrote. A
// record has one figure for what its end freed.
func TestBranchesInTheLog(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	parent := create(t, c, ctx, map[string]any{"description": "words of the agent", "prompt": "words of the agent"})
	child := create(t, c, ctx, map[string]any{"description": "words of the agent", "parent_branch_id": parent.BranchID})
	own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": parent.BranchID, "message": "words of the agent"})))
	g.stop()
	log := g.log.String()
	for _, want := range []string{
		`level=INFO msg="branch created" context=` + parent.path() + " principal=local status=created tokens=", `msg="branch created" context=` + child.path() + " ",
		`msg="branch returned" context=` + parent.path() + " ", ` principal=local status=parent_returning tokens=`,
	} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, "words of the agent") {
		t.Errorf("the log has words of the agent:\n%s", log)
	}
	type freed struct {
		Kind    string
		Payload struct {
			Freed int `json:"freed_tokens"`
		}
		Audit struct{ Tokens struct{ Freed int } }
	}
	for _, r := range traceAs[freed](g, "--kind", "context/pop") {
		if r.Payload.Freed != r.Audit.Tokens.Freed {
			t.Errorf("a pop says that %d and %d tokens were freed", r.Payload.Freed, r.Audit.Tokens.Freed)
		}
	}
}
