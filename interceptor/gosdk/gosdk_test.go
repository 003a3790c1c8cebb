package gosdk

//lint:file-ignore SA1019 what the protocol deprecates still has to be scrubbed and charged

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/test/fixtures"
)

// The main job: a client opens a branch, reads ten files of over 40,000 tokens in it, and brings back
// a summary of a few. Each token is charged once, and the secret in the seventh file reaches nobody.
func TestMainJob(t *testing.T) {
	dir, secret := t.TempDir(), fixtures.Secret()
	if err := fixtures.Write(dir, secret); err != nil {
		t.Fatal(err)
	}
	everyTransport(t, plan{Dir: dir}, func(t *testing.T, r *rig) {
		const about, summary = "find where orders are lost", "Orders are not lost: they wait in the outbox (docs/runbook.md)."
		res := r.call("branch_create", `{"description":"`+about+`","budget":100000}`)
		received := tokens(t, text(res))
		var b branch
		if err := json.Unmarshal([]byte(text(res)), &b); err != nil {
			t.Fatalf("branch_create: %s", text(res))
		}
		used, crossed := tokens(t, about), 0
		for i, name := range fixtures.Names {
			args := `{"path":"` + name + `"}`
			got := text(r.call("read", `{"path":"`+name+`","branch_id":"`+b.BranchID+`"}`))
			disk, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if before, after, _ := strings.Cut(string(disk), secret); i == 6 && (!strings.HasPrefix(got, before) || !strings.HasSuffix(got, after)) || i != 6 && got != string(disk) {
				t.Errorf("%s arrived with %d bytes, has %d on disk, and lost more than a secret: %.300s", name, len(got), len(disk), got)
			}
			crossed += tokens(t, got)
			used += tokens(t, got) + tokens(t, args)
		}
		if s := own[branch](r, "branch_status", `{"branch_id":"`+b.BranchID+`"}`); s.Status != "active" || s.BudgetUsed != used {
			t.Errorf("branch_status = %+v, want active and %d used", s, used)
		}
		res = r.call("branch_return", `{"branch_id":"`+b.BranchID+`","message":"`+summary+`"}`)
		received += tokens(t, text(res))
		var end branch
		if err := json.Unmarshal([]byte(text(res)), &end); err != nil || !end.Success || end.Message != summary || end.TokensUsed != used {
			t.Errorf("branch_return = %s, want success, the summary and %d tokens", text(res), used)
		}
		if crossed < 40000 || received > 500 {
			t.Errorf("%d tokens of files crossed, and the parent received %d; want over 40000 and at most 500", crossed, received)
		}
		r.keepsSecret(secret)
		calls := 0
		for rec := range scan(t, r.plan.State, query.Filter{Kinds: []string{trace.KindRequest + "tools/call"}}) {
			if strings.Contains(rec.Context, b.BranchID) && rec.AuditOrEmpty().Tool == "read" && rec.AuditOrEmpty().Server == "server" {
				calls++
			}
		}
		if calls != len(fixtures.Names) {
			t.Errorf("the trace has %d reads in the branch, want %d", calls, len(fixtures.Names))
		}
	})
}

// Parallel calls on the last tokens of a branch: not one token more than its budget is delivered, by
// an independent count, and the branch ends once.
func TestParallelCallsOnTheLastTokens(t *testing.T) {
	everyTransport(t, plan{}, func(t *testing.T, r *rig) {
		const budget = 3000
		b := own[branch](r, "branch_create", fmt.Sprintf(`{"description":"work","budget":%d}`, budget)).BranchID
		args, plain := `{"bytes":800,"branch_id":"`+b+`"}`, `{"bytes":800}`
		used := tokens(t, "work")
		for used < budget/2 {
			used += tokens(t, text(r.call("fill", args))) + tokens(t, plain)
			if s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`); s.BudgetUsed != used || s.Status != "active" {
				t.Fatalf("branch_status = %+v, want %d used", s, used)
			}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		delivered := 0
		for range 32 {
			wg.Go(func() {
				res, err := r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: "fill", Arguments: json.RawMessage(args)})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case !res.IsError:
					used += tokens(t, text(res)) + tokens(t, plain)
					delivered++
				case !strings.Contains(text(res), `"status":409`):
					t.Errorf("refused with %s", text(res))
				}
			})
		}
		wg.Wait()
		s := own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`)
		if used > budget || s.BudgetUsed > budget || s.BudgetUsed < used {
			t.Errorf("%d tokens were delivered by an independent count, %d are booked, the budget is %d", used, s.BudgetUsed, budget)
		}
		if s.Status != "failed" || s.Reason != "budget_exhausted" || delivered == 0 || delivered == 32 {
			t.Errorf("after %d of 32 calls: %+v, want failed, budget_exhausted", delivered, s)
		}
	})
}

// No way from the server to the client leaks a secret, and each that was tried shows where it was.
func TestNothingLeaks(t *testing.T) {
	secret := fixtures.Secret()
	everyTransport(t, plan{Secret: secret}, func(t *testing.T, r *rig) {
		try := func(what string, do func() error) {
			t.Helper()
			before := len(r.wire.read("read:"))
			err := do() // some are meant to fail
			came := strings.Join(r.wire.read("read:")[before:], "")
			if !strings.Contains(came+fmt.Sprint(err), "[REDACTED:") {
				t.Errorf("%s: nothing was redacted, so nothing was tried: %v %.500s", what, err, came)
			}
		}
		if r.plan.Era == legacy {
			if err := r.c.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
				t.Fatal(err)
			}
		}
		all := ways
		if r.plan.Era == legacy {
			all = append(all[:len(all):len(all)], legacyWays...)
		}
		for _, how := range all {
			if how == "log" && r.plan.Era == modern {
				continue // a request says whether it wants them
			}
			try(how, func() error {
				p := &mcp.CallToolParams{Name: "leak", Arguments: json.RawMessage(`{"how":"` + how + `"}`), Meta: mcp.Meta{}}
				p.SetProgressToken("token")
				_, err := r.c.CallTool(t.Context(), p)
				return err
			})
		}
		try("tools/list", func() error { _, err := r.c.ListTools(t.Context(), nil); return err })
		try("prompts/list", func() error { _, err := r.c.ListPrompts(t.Context(), nil); return err })
		try("prompts/get", func() error {
			_, err := r.c.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "ask"})
			return err
		})
		try("resources/list", func() error { _, err := r.c.ListResources(t.Context(), nil); return err })
		try("resources/read", func() error {
			_, err := r.c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "leak://a"})
			return err
		})
		try("unknown tool", func() error {
			_, err := r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: secret})
			return err
		})
		try("echoed argument of a tool of foldgate", func() error {
			_, err := r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: "branch_status", Arguments: json.RawMessage(`{"` + secret + `":1}`)})
			return err
		})
		try("unknown branch", func() error {
			_, err := r.c.CallTool(t.Context(), &mcp.CallToolParams{Name: "write", Arguments: json.RawMessage(`{"how":"x","branch_id":"` + secret + `"}`)})
			return err
		})
		if init := r.c.InitializeResult(); init == nil || !strings.Contains(init.Instructions, "[REDACTED:") || !strings.Contains(init.Instructions, "branch_create") {
			t.Errorf("the instructions are %+v, want them scrubbed, and foldgate's own", init)
		}
		r.keepsSecret(secret)
	})
}
