//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// create opens a branch that must be granted.
func create(t *testing.T, c *mcpclient.Client, ctx context.Context, args map[string]any) created {
	t.Helper()
	if args["description"] == nil {
		args["description"] = "work"
	}
	return own[created](t, tool(t, c, ctx, "branch_create", jsonText(args)))
}

const unknownBranch = "br_2f6b1c34-9a0d-4e57-8b21-5c7d90e1f3a4"

// Every wrong call has one code, one status and a remedy, as the table in docs/folding.md says.
// Through the binary.
func TestBranchErrors(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "folding: {max_branches_per_minute: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	ended := create(t, c, ctx, map[string]any{}).BranchID
	own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": ended, "message": "done"})))
	deep := ""
	for range 3 {
		args := map[string]any{}
		if deep != "" {
			args["parent_branch_id"] = deep
		}
		deep = create(t, c, ctx, args).BranchID
	}
	long := func(n int) string { return strings.Repeat("é", n) } // two bytes, one character
	for _, tt := range []struct {
		name, tool string
		args       map[string]any
		code       string
		status     int
		says       string
	}{
		{"no description", "branch_create", map[string]any{}, "invalid_input", 400, "description"},
		{"blank description", "branch_create", map[string]any{"description": " \u200b\n"}, "invalid_input", 400, "description"},
		{"description too long", "branch_create", map[string]any{"description": long(501)}, "invalid_input", 400, "501 characters, the limit is 500"},
		{"prompt too long", "branch_create", map[string]any{"description": "d", "prompt": long(10_001), "budget": 32768}, "invalid_input", 400, "10001 characters, the limit is 10000"},
		{"description of the wrong type", "branch_create", map[string]any{"description": 7}, "invalid_input", 400, "description must be a string, not number"},
		{"unknown argument", "branch_create", map[string]any{"description": "d", "colour": "red"}, "invalid_input", 400, `branch_create takes no "colour"; its arguments are description, prompt, budget, `},
		{"unknown key of a call", "branch_run", map[string]any{"steps": []any{map[string]any{"tool": "files__read_file"}, map[string]any{"tol": "x"}}}, "invalid_input", 400, `steps[1] takes no "tol"; its arguments are tool, `},
		{"negative budget", "branch_create", map[string]any{"description": "d", "budget": -1}, "invalid_input", 400, "budget"},
		{"broken budget", "branch_create", map[string]any{"description": "d", "budget": 0.5}, "invalid_input", 400, "budget must be a whole number, not 0.5"},
		{"budget as a text", "branch_create", map[string]any{"description": "d", "budget": "lots"}, "invalid_input", 400, `budget must be a whole number, not "lots"`},
		{"arguments of calls as a text", "branch_run", map[string]any{"tool": "fake__echo", "each": "{}"}, "invalid_input", 400, "each must be a list, not string"},
		{"negative timeout", "branch_create", map[string]any{"description": "d", "timeout_seconds": -1}, "invalid_input", 400, "timeout_seconds"},
		{"texts over the budget", "branch_create", map[string]any{"description": "one two three four", "budget": 2}, "invalid_input", 400, "budget of 2"},
		{"session id with a space", "branch_create", map[string]any{"description": "d", "session_id": "a b"}, "invalid_input", 400, "session_id"},
		{"session id too long", "branch_create", map[string]any{"description": "d", "session_id": strings.Repeat("s", 256)}, "invalid_input", 400, "255"},
		{"too deep", "branch_create", map[string]any{"description": "d", "parent_branch_id": deep}, "max_depth_exceeded", 400, "depth 3"},
		{"unknown parent", "branch_create", map[string]any{"description": "d", "parent_branch_id": unknownBranch}, "branch_not_found", 404, "branch_create"},
		{"ended parent", "branch_create", map[string]any{"description": "d", "parent_branch_id": ended}, "branch_not_active", 409, "completed"},
		{"message too long", "branch_return", map[string]any{"branch_id": deep, "message": long(50_001)}, "invalid_input", 400, "50001 characters, the limit is 50000"},
		{"unknown branch", "branch_return", map[string]any{"branch_id": unknownBranch, "message": "m"}, "branch_not_found", 404, "branch_create"},
		{"no branch", "branch_return", map[string]any{"message": "m"}, "invalid_input", 400, "branch_id is missing: give the one that branch_create returned"},
		{"branch null", "branch_return", map[string]any{"branch_id": nil, "message": "m"}, "invalid_input", 400, "branch_id is missing: give the one that branch_create returned"},
		{"no handle", "branch_create", map[string]any{"description": "d", "handles": []string{"res_1"}}, "invalid_input", 400, `handles: "res_1" is not the handle`},
		{"no message", "branch_return", map[string]any{"branch_id": deep}, "invalid_input", 400, "message is missing, and nothing was closed"},
		{"returned twice", "branch_return", map[string]any{"branch_id": ended, "message": "m"}, "branch_not_active", 409, "completed"},
		{"call in an ended branch", "fake__echo", map[string]any{"branch_id": ended}, "branch_not_active", 409, "completed"},
		{"call in an unknown branch", "fake__echo", map[string]any{"branch_id": unknownBranch}, "branch_not_found", 404, "branch_create"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := refused(t, tool(t, c, ctx, tt.tool, jsonText(tt.args)))
			if f.Error.Code != tt.code || f.Error.Status != tt.status || !strings.Contains(f.Error.Message, tt.says) || strings.Contains(f.Error.Message, "invalid input") {
				t.Errorf("%s %.120s = %d %s: %s; want %d %s and a word on %q", tt.tool, jsonText(tt.args), f.Error.Status, f.Error.Code, f.Error.Message, tt.status, tt.code, tt.says)
			}
		})
	}
	if s := own[status](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": unknownBranch}))); s.BranchID != nil || s.Status != "No active branch found" {
		t.Errorf("branch_status of an unknown branch = %+v", s)
	}
	t.Run("arguments over the budget", func(t *testing.T) {
		b := create(t, c, ctx, map[string]any{"budget": 50})
		f := refused(t, tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": strings.Repeat("word ", 100), "branch_id": b.BranchID})))
		if s := statusOf(t, c, ctx, b.BranchID); f.Error.Code != "budget_exhausted" || f.Error.Status != 409 || s.Status != "failed" || s.Reason != "budget_exhausted" || s.BudgetUsed > 50 {
			t.Errorf("%d %s: %s; branch %+v", f.Error.Status, f.Error.Code, f.Error.Message, s)
		}
	})
	t.Run("texts at their limits", func(t *testing.T) {
		b := create(t, c, ctx, map[string]any{"description": long(500), "prompt": long(10_000), "budget": 32768})
		r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": long(50_000)})))
		if !r.Success || r.Message != long(50_000) {
			t.Errorf("branch_return = success %v with %d bytes", r.Success, len(r.Message))
		}
	})
}

// Characters that a model sees and a reader does not are removed from every text, and do not
// count.
func TestInvisibleCharacters(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	hidden := "\x00\x1b\x7f\u0085\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\U000e0041\U000e007f"
	dirty := strings.Repeat(hidden, 40) + "a\tb" + hidden + "\nc \U0001f468\u200d\U0001f469 \u0928\u200d" + hidden
	clean := "a\tb\nc \U0001f468\u200d\U0001f469 \u0928\u200d"
	b := create(t, c, ctx, map[string]any{"description": dirty, "prompt": dirty})
	s := own[struct {
		Description string
		BudgetUsed  int `json:"budget_used"`
	}](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b.BranchID})))
	if want := tokens(t, clean+"\n"+clean); s.Description != clean || s.BudgetUsed != want {
		t.Errorf("description %q with %d tokens used, want %q and %d", s.Description, s.BudgetUsed, clean, want)
	}
	r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": dirty})))
	if r.Message != clean {
		t.Errorf("message %q, want %q", r.Message, clean)
	}
}

// 64 creations at once meet each limit exactly, and are told when to come back.
func TestLimitsThroughTheBinary(t *testing.T) {
	t.Parallel()
	const many = "max_branches_per_minute: 1000000, max_concurrent_per_session: 1000000, max_concurrent_per_instance: 1000000"
	for _, tt := range []struct {
		name, folding string
		connections   int
		args          map[string]any
		granted       int
		code          string
		wait          int // the longest
	}{
		{"5 per minute and session", "{}", 1, nil, 5, "rate_limited", 60},
		{"5 per minute and session of three", "{}", 3, nil, 15, "rate_limited", 60},
		{"30 per minute and principal", "{}", 7, nil, 30, "rate_limited", 60},
		{"a limit of its own", "{max_branches_per_minute_per_principal: 9}", 3, nil, 9, "rate_limited", 60},
		{"10 per session", strings.Replace("{"+many+"}", "session: 1000000", "session: 10", 1), 1, nil, 10, "too_many_branches", 300},
		{"100 per instance", strings.Replace("{"+many+"}", "instance: 1000000", "instance: 100", 1), 2, nil, 100, "instance_full", 300},
		{"invented sessions", "{}", 1, map[string]any{"session_id": "made-up-"}, 5, "rate_limited", 60},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), "folding: "+tt.folding+"\n"))
			url := g.http()
			var clients []*mcpclient.Client
			for range tt.connections {
				c := g.dial(ctx, url, mcpclient.Legacy)
				clients = append(clients, c)
			}
			var mu sync.Mutex
			var answers []mcpclient.Message
			var wg sync.WaitGroup
			for i := range 64 * tt.connections {
				args := map[string]any{"description": "d"}
				for k, v := range tt.args {
					args[k] = fmt.Sprint(v, i)
				}
				params := jsonText(map[string]any{"name": "branch_create", "arguments": args})
				wg.Go(func() {
					m, err := clients[i%len(clients)].Call(ctx, "tools/call", params)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
						return
					}
					answers = append(answers, m)
				})
			}
			wg.Wait()
			granted := 0
			for _, m := range answers {
				if !parseResult(t, m).IsError {
					granted++
				} else if f := refused(t, m); f.Error.Code != tt.code || f.Error.Status != 429 || f.Error.RetryAfter < 1 || f.Error.RetryAfter > tt.wait {
					t.Errorf("refused with %+v, want %s, 429 and 1 to %d s", f.Error, tt.code, tt.wait)
				}
			}
			if granted != tt.granted {
				t.Errorf("%d of %d creations were granted, want %d", granted, len(answers), tt.granted)
			}
		})
	}
}

// Where a message can't be scrubbed it goes nowhere, and nothing is closed.
func TestScrubbingFailsClosed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "scrub: {timeout_ms: 20, rules: slow.toml}\n"))
	write(t, filepath.Join(g.dir, "slow.toml"), "[[rules]]\nid = \"slow\"\ndescription = \"slow\"\nregex = '(?:x[xy]{1,300}z){1,3}'\n")
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{})
	f := refused(t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": strings.Repeat("x", 50_000)})))
	if f.Error.Code != "scrubbing_failed" || f.Error.Status != 500 || strings.Contains(f.Error.Message, "xxx") {
		t.Errorf("branch_return = %d %s: %s", f.Error.Status, f.Error.Code, f.Error.Message)
	}
	if s := statusOf(t, c, ctx, b.BranchID); s.Status != "active" {
		t.Errorf("the branch is %+v, want active: nothing was returned", s)
	}
	r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": "ok"})))
	if !r.Success || r.Message != "ok" {
		t.Errorf("second branch_return = %+v", r)
	}
}

// On a full disk nothing is delivered that is not in the books, and the
// gateway says so.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "trace: {payload: none, on_error: warn}\nfolding: {max_branches_per_minute: 1000}\n"))
	limited := g.command("run")
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -f 1024; exec "$0" "$@"`}, limited.Args...)...)
	cmd.Dir, cmd.Stderr = limited.Dir, limited.Stderr
	c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	startHost(t, ctx, c)
	call(t, c, ctx, "tools/list", `{}`)
	b := create(t, c, ctx, map[string]any{"budget": 32768})
	received := tokens(t, "work")
	for i := range 400 {
		m := tool(t, c, ctx, "branch_create", `{"description":"work"}`)
		if !parseResult(t, m).IsError {
			tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": own[created](t, m).BranchID, "message": "words"}))
			continue
		}
		f := refused(t, m)
		if f.Error.Code != "storage_failed" || f.Error.Status != 500 {
			t.Errorf("branch %d on a full disk = %+v", i+1, f.Error)
		}
		// The branch that is open has its page in a file: a call needs no more room.
		m = tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": "words", "branch_id": b.BranchID}))
		if parseResult(t, m).IsError {
			t.Errorf("a call on a full disk = %s", m.Result)
		}
		received += resultTokens(t, m) + tokens(t, `{"text":"words"}`)
		s := statusOf(t, c, ctx, b.BranchID)
		if s.Status != "active" || s.BudgetUsed < received {
			t.Errorf("branch_status = %+v, the client received %d tokens", s, received)
		}
		r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": "enough"})))
		if !r.Success {
			t.Errorf("branch_return on a full disk = %+v", r)
		}
		t.Logf("the disk was full after %d branches: %s", i, f.Error.Message)
		return
	}
	t.Error("400 branches and the disk is not full: the test has to limit it more")
}

// A message that limits do not pay for, and that can't be stored either, is lost if the trace has no payloads: the
// answer says so.
func TestMessageOnFullDisk(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for payload, says := range map[string]string{"none": "could not be stored", "scrubbed": "is in the trace only"} {
		g := newGateway(t, `upstreams: {files: {builtin: files, roots: [docs]}}
trace: {payload: `+payload+`}
budgets: {limits: [{name: main, match: {context: main}, per: session, tokens: 500}]}
`)
		if err := os.Mkdir(filepath.Join(g.dir, "docs"), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(g.dir, "docs", "big.txt"), strings.Repeat("a line of a text\n", 2400))
		limited := g.command("run")
		cmd := exec.Command("sh", append([]string{"-c", `ulimit -f 1024; exec "$0" "$@"`}, limited.Args...)...)
		cmd.Dir, cmd.Stderr = limited.Dir, limited.Stderr
		c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		startHost(t, ctx, c)
		b := create(t, c, ctx, map[string]any{"budget": 32768})
		for !strings.Contains(g.log.String(), "could not be stored: result store "+filepath.Join(g.dir, "state", "results.db")+": ") { // fills it
			tool(t, c, ctx, "files__read_file", jsonText(map[string]any{"path": "big.txt", "branch_id": b.BranchID}))
			if ctx.Err() != nil {
				t.Fatal("the store of results is not full")
			}
		}
		r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": strings.Repeat("word ", 9900)})))
		if !r.Success || r.Message != "[a limit is spent: the message of 9901 tokens "+says+"]" {
			t.Errorf("with payload %s: %+v", payload, r)
		}
	}
}

// What happens while the trace can't be written is recorded once it can: the end of a branch, the response of a call.
func TestEndsOnFullDisk(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "http", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{"timeout_seconds": 2})
	room := func(bytes uint64) { // that each file has
		t.Helper()
		if err := unix.Prlimit(g.pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil); err != nil {
			t.Fatal(err)
		}
	}
	slow := make(chan mcpclient.Message, 1)
	go func() { slow <- tool(t, c, ctx, "fake__slow", `{"ms":1000,"text":"late"}`) }()
	until(t, "the call is recorded", func() bool { return strings.Contains(g.output("trace", "--tool", "slow"), "mcp/request") })
	room(1)
	until(t, "the branch ends", func() bool { return strings.Contains(g.log.String(), "branch ended") })
	if m := tool(t, c, ctx, "fake__echo", `{}`); refused(t, m).Error.Code != "trace_unavailable" {
		t.Errorf("a call on a full disk = %s", m.Result)
	}
	if m := <-slow; parseResult(t, m).IsError {
		t.Errorf("a call that was under way = %s", m.Result)
	}
	room(unix.RLIM_INFINITY)
	until(t, "the trace has the end", func() bool { return strings.Contains(g.output("trace", "--kind", "context/pop"), "timeout") })
	if said := g.output("trace", "--tool", "slow", "--format", "jsonl"); strings.Count(said, `"mcp/response:tools/call"`) != 1 || strings.Count(said, `late"`) != 2 {
		t.Errorf("the trace of the call is %s", said)
	}
	if said := g.output("trace", "verify"); strings.Contains(said, b.BranchID) {
		t.Errorf("trace verify says %s", said)
	}
}
