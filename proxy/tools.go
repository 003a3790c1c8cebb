package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// ownInstructions tell the model when to branch. They are paid for in every
// session, so they state one rule and the three steps.
const ownInstructions = "foldgate isolates subtasks. When a task needs more than two reads or searches, open a branch: " +
	"branch_create, pass its branch_id to every call you make for the subtask (or hand it to a subagent), then branch_return with a short summary of the findings. " +
	"For many similar calls use branch_run. Large results arrive as previews; branch_read shows the rest. Secrets are replaced by [REDACTED:rule]."

// foldTool is one of foldgate's own tools.
type foldTool struct {
	name       string
	definition json.RawMessage
	// place finds the branch that pays for a call; nil for the tools that
	// manage branches, which are never charged or refused for budget.
	place func(fl *inbound, c *interceptor.Call)
}

// alwaysLoad asks hosts that load tools on demand to show these from the start.
const alwaysLoad = `"_meta":{"anthropic/alwaysLoad":true}`

// ownTools are listed to every host, whatever the state of its branches.
var ownTools = []*foldTool{
	{name: "branch_create", definition: json.RawMessage(`{"name":"branch_create",` +
		`"description":"Open an isolated branch for a subtask. Pass its branch_id to the calls made for it, which its token budget pays. End it with branch_return.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"description":{"type":"string","description":"What the branch will do","maxLength":500},` +
		`"prompt":{"type":"string","description":"Detailed instructions","maxLength":10000},` +
		`"budget":{"type":"number","description":"Token budget"},` +
		`"timeout_seconds":{"type":"number"},` +
		`"parent_branch_id":{"type":"string","description":"Branch to nest in"},` +
		`"session_id":{"type":"string"}},"required":["description"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_return", definition: json.RawMessage(`{"name":"branch_return",` +
		`"description":"End a branch and hand its result to the parent. Branches opened inside it are closed first.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"branch_id":{"type":"string"},` +
		`"message":{"type":"string","description":"Short summary of the findings","maxLength":50000}},"required":["branch_id","message"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_status", definition: json.RawMessage(`{"name":"branch_status",` +
		`"description":"State and budget of a branch, or of the session's active branch.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"branch_id":{"type":"string"},"session_id":{"type":"string"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_read", place: placeRead, definition: json.RawMessage(`{"name":"branch_read",` +
		`"description":"Read part of a folded result by its handle: lines, grep (with context lines), jq, ranked search, or page by page.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"handle":{"type":"string"},` +
		`"lines":{"type":"string","description":"120-140, 120- or -50; also limits grep"},` +
		`"grep":{"type":"string","description":"RE2"},` +
		`"context":{"type":"number"},` +
		`"jq":{"type":"string"},"search":{"type":"string"},"page":{"type":"number"},"max_tokens":{"type":"number"},` +
		`"branch_id":{"type":"string"}},"required":["handle"],"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_run", place: placeRun, definition: json.RawMessage(`{"name":"branch_run",` +
		`"description":"Make many read-only calls at once and get only what grep or jq lets through. Give tool and each (its arguments, one object a call), or steps.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"tool":{"type":"string"},"each":{"type":"array","items":{"type":"object"}},` +
		`"steps":{"type":"array","items":{"type":"object","properties":{"tool":{"type":"string"},"arguments":{"type":"object"}}}},` +
		`"grep":{"type":"string"},"jq":{"type":"string","description":"Input: [{step,tool,arguments,result|error}]"},` +
		`"max_tokens":{"type":"number"},"parallel":{"type":"number"},` +
		`"description":{"type":"string"},"branch_id":{"type":"string"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true},` + alwaysLoad + `}`)},
}

// answer returns what serves the tool. It is no field of ownTools: a batch calls
// tools, which are found in a list that has these.
func (t *foldTool) answer() answer {
	switch t.name {
	case "branch_create":
		return branchCreate
	case "branch_return":
		return branchReturn
	case "branch_status":
		return branchStatus
	case "branch_read":
		return branchRead
	}
	return branchRun
}

// ownTool returns the own tool called name, or nil.
func ownTool(name string) *foldTool {
	for _, t := range ownTools {
		if t.name == name {
			return t
		}
	}
	return nil
}

// arguments decodes the arguments of an own tool strictly.
func arguments(c *interceptor.Call, into any) error {
	raw := c.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage(`{}`)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, extra := dec.Token(); !errors.Is(extra, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return &interceptor.Refusal{Reason: "invalid", Code: "invalid_input", Status: 400, Err: err, Message: badArguments(c.Name, raw, err)}
	}
	return nil
}

// badArguments says which argument of an own tool is wrong, and what it takes.
func badArguments(tool string, raw []byte, err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Sprintf("%s must be %s, not %s", wrong.Field, jsonType(wrong.Type), wrong.Value)
	}
	var takes []string
	schema, _ := rawjson.Get(ownTool(tool).definition, "inputSchema", "properties")
	rawjson.Members(schema, func(m rawjson.Member) bool {
		takes = append(takes, m.Name())
		return true
	})
	unknown := ""
	rawjson.Members(raw, func(m rawjson.Member) bool {
		if !slices.Contains(takes, m.Name()) {
			unknown = m.Name()
		}
		return unknown == ""
	})
	if unknown != "" {
		return fmt.Sprintf("%s takes no %q; its arguments are %s", tool, clipText(unknown, 64), strings.Join(takes, ", "))
	}
	return fmt.Sprintf("the arguments of %s are not as its schema says: %v", tool, err)
}

// jsonType names what of JSON a value of type t is made of.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Int:
		return "a whole number"
	}
	return "an object"
}

// whole is a JSON number that must be an integer: models write 8192.0 too.
type whole int

func (w *whole) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<40 {
		return &json.UnmarshalTypeError{Value: clipText(string(b), 64), Type: reflect.TypeFor[whole]()} // the decoder adds whose value it is
	}
	*w = whole(f)
	return nil
}

// refused records why an own tool said no.
func refused(c *interceptor.Call, err error) error {
	r := badQuestion(err)
	if r == nil {
		r = interceptor.FoldingRefusal(err)
	}
	c.Decision = r.Reason
	return r
}

func (fl *inbound) caller(c *interceptor.Call) folding.Caller {
	return c.Caller()
}

// branchCreate serves branch_create.
func branchCreate(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in struct {
		SessionID      string `json:"session_id"`
		ParentBranchID string `json:"parent_branch_id"`
		Description    string `json:"description"`
		Prompt         string `json:"prompt"`
		Budget         whole  `json:"budget"`
		TimeoutSeconds whole  `json:"timeout_seconds"`
	}
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	if in.ParentBranchID == "" {
		in.ParentBranchID = c.Handle // rungs 1 to 3 name a parent, the session's active branch does not
	}
	g := fl.s.gw
	b, err := g.branches.Create(ctx, fl.caller(c), folding.CreateRequest{
		SessionID: in.SessionID, ParentID: in.ParentBranchID, Description: in.Description, Prompt: in.Prompt,
		Budget: int(in.Budget), TimeoutSeconds: int(in.TimeoutSeconds), Cause: c,
	})
	if err != nil {
		return nil, refused(c, err)
	}
	out := struct {
		BranchID        string `json:"branch_id"`
		BudgetAllocated int    `json:"budget_allocated"`
		Depth           int    `json:"depth"`
		SessionID       string `json:"session_id,omitempty"`
		Context         string `json:"context,omitempty"`
	}{BranchID: b.ID, BudgetAllocated: b.BudgetTotal, Depth: b.Depth}
	if b.Session != c.Session { // the model can't know the connection's own id, nor does it need it
		out.SessionID = b.Session
	}
	if b.Context != b.ID { // the context of a first-level branch is its id
		out.Context = b.Context
	}
	// A model has no clock, and branch_status says it; programs read _meta.
	body := rawjson.Set(toolResult(rawjson.Marshal(out), false, fl.modern), rawjson.Quote(stamp(b.ExpiresAt)), "_meta", metaExpires)
	return &interceptor.Result{Body: body}, nil
}

// branchReturn serves branch_return.
func branchReturn(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in struct {
		BranchID string `json:"branch_id"`
		Message  string `json:"message"`
	}
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	g := fl.s.gw
	defer g.returns(c, in.BranchID)()
	ret, err := g.branches.Return(ctx, fl.caller(c), in.BranchID, in.Message)
	if err != nil {
		return nil, refused(c, err)
	}
	c.Clean = true // a second scan that failed would withhold what was returned
	out := struct {
		Success    bool   `json:"success"`
		TokensUsed int    `json:"tokens_used"`
		Message    string `json:"message"`
		Late       bool   `json:"late,omitempty"`
		Status     string `json:"status,omitempty"`
		Reason     string `json:"reason,omitempty"`
	}{Success: true, TokensUsed: ret.Branch.BudgetUsed, Message: ret.Message}
	if ret.Granted < ret.MessageTokens {
		out.Message, _ = g.counter.Truncate(ret.Message, ret.Granted)
		c.Truncated = true
	}
	if ret.Late {
		out.Success, out.Late, out.Status, out.Reason = false, true, string(ret.Branch.Status), ret.Branch.Reason
		c.Late = true
	}
	return &interceptor.Result{Body: toolResult(rawjson.Marshal(out), false, fl.modern)}, nil
}

// branchStatus serves branch_status.
func branchStatus(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in struct {
		BranchID  string `json:"branch_id"`
		SessionID string `json:"session_id"`
	}
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	if in.BranchID == "" && in.SessionID == "" {
		if in.BranchID = c.Handle; in.BranchID == "" && c.Session == "" {
			return nil, refused(c, fmt.Errorf("%w: give branch_id, or the session_id that branch_create returned", folding.ErrInvalidInput))
		}
	}
	b, found, err := fl.s.gw.branches.Status(ctx, fl.caller(c), folding.StatusRequest{BranchID: in.BranchID, SessionID: in.SessionID})
	if err != nil {
		return nil, refused(c, err)
	}
	if !found {
		return &interceptor.Result{Body: toolResult(json.RawMessage(`{"branch_id":null,"status":"No active branch found"}`), false, fl.modern)}, nil
	}
	out := struct {
		BranchID    string `json:"branch_id"`
		SessionID   string `json:"session_id"`
		Status      string `json:"status"`
		Depth       int    `json:"depth"`
		BudgetUsed  int    `json:"budget_used"`
		BudgetTotal int    `json:"budget_total"`
		Description string `json:"description"`
		Context     string `json:"context"`
		CreatedAt   string `json:"created_at"`
		ExpiresAt   string `json:"expires_at,omitempty"`
		CompletedAt string `json:"completed_at,omitempty"`
		Reason      string `json:"reason,omitempty"`
		Error       string `json:"error,omitempty"`
		Digest      string `json:"digest,omitempty"`
		Message     string `json:"message,omitempty"`
		Folded      string `json:"folded,omitempty"`
	}{
		BranchID: b.ID, SessionID: b.Session, Status: string(b.Status), Depth: b.Depth, BudgetUsed: b.BudgetUsed, BudgetTotal: b.BudgetTotal,
		Description: b.Description, Context: b.Context, CreatedAt: stamp(b.CreatedAt), Reason: b.Reason, Error: b.Error, Digest: b.Digest,
	}
	if b.Status.Terminal() {
		out.CompletedAt = stamp(b.CompletedAt)
	} else {
		out.ExpiresAt = stamp(b.ExpiresAt)
	}
	out.Folded = fl.s.gw.savedLine(ctx, b)
	if b.Late { // nobody else has seen it
		out.Message = b.Message
	}
	return &interceptor.Result{Body: toolResult(rawjson.Marshal(out), false, fl.modern)}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
