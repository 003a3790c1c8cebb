package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/runner"
)

// toolName has the characters that a tool's name may not have at the endpoints.
var toolName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

const maxToolName = 64

// tools returns the tools of the model, and sets names: foldgate's own, then those that a batch may call and
// llm.tools selects. They stay as they are for the whole run, so that endpoints can cache them.
func (a *agent) tools(ctx context.Context) (all []runner.Tool) {
	own := []int{iReturn, iRead, iRun}
	if a.branch.Depth < a.t.Config().Folding.MaxDepth {
		own = append(own, iCreate)
	}
	var list []json.RawMessage
	for _, i := range own {
		d := definitions[i]
		left, _ := rawjson.Get(d, "inputSchema", "properties")
		for _, name := range []string{"branch_id", "parent_branch_id", "session_id", "run", "wait", "handles"} {
			left = rawjson.Delete(left, name)
		}
		d = rawjson.Set(d, left, "inputSchema", "properties")
		switch i {
		case iCreate:
			d = rawjson.Set(d, []byte(`"Have a subtask done apart from this conversation, and get its message. prompt must have all it needs."`), "description")
		case iReturn:
			d = rawjson.Set(rawjson.Set(d, []byte(`"End this branch, and give its caller the result."`), "description"), []byte(`["message"]`), "inputSchema", "required")
		}
		list = append(list, d)
	}
	for _, d := range a.parent.Callable(ctx) {
		if name, _ := rawjson.GetString(d, "name"); a.llm.Selects(name) {
			list = append(list, d)
		}
	}
	for _, d := range list {
		shown, _ := rawjson.GetString(d, "name")
		description, _ := rawjson.GetString(d, "description")
		schema, ok := rawjson.Get(d, "inputSchema")
		if !ok || rawjson.KindOf(schema) != rawjson.Object {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		name := toolName.ReplaceAllString(shown, "_")
		name = name[:min(len(name), maxToolName)]
		for n := 2; a.names[name] != ""; n++ {
			suffix := fmt.Sprintf("_%d", n)
			name = name[:min(len(name), maxToolName-len(suffix))] + suffix
		}
		a.names[name] = shown
		all = append(all, runner.Tool{Name: name, Description: description, Schema: schema})
	}
	return all
}

// caller is the client that makes the calls of the run.
func (a *agent) caller() folding.Caller {
	c := a.parent.Call.Caller()
	c.Thread = agentThread
	return c
}

// newCall begins a call of the run.
func (a *agent) newCall(id, method string) *interceptor.Call {
	return &interceptor.Call{
		Origin:      derived(a.parent.Call, a.branch.ID+"/"+id),
		Target:      interceptor.Target{Method: method, Metered: true},
		Attribution: interceptor.Attribution{BranchID: a.branch.ID, Source: interceptor.SourceCause},
	}
}

// Call implements [runner.Branch].
func (a *agent) Call(ctx context.Context, name string, arguments json.RawMessage) (text string, isError bool) {
	shown := cmp.Or(a.names[name], name)
	switch shown {
	case "branch_create":
		arguments = rawjson.Set(arguments, rawjson.Quote(a.branch.Session), "session_id")
		arguments = rawjson.Set(rawjson.Set(arguments, rawjson.Quote(a.branch.ID), "parent_branch_id"), []byte("true"), "run")
	case "branch_read", "branch_run":
		arguments = rawjson.Set(arguments, rawjson.Quote(a.branch.ID), "branch_id")
	default:
		if Has(shown) || a.names[name] == "" {
			return fmt.Sprintf("there is no tool %.64q here", name), true
		}
	}
	res, err := a.do(ctx, shown, arguments)
	if err != nil {
		return a.t.Boundary.Text(err.Error()), true
	}
	text, structured := res.Text()
	if kind, _ := rawjson.GetString(res.Body, "resultType"); kind == "input_required" {
		return "the tool asks for input, which a branch that runs by itself can't give", true
	}
	return cmp.Or(text, structured, "(no text)"), res.Failed()
}

// do makes a call of a tool in the branch.
func (a *agent) do(ctx context.Context, shown string, arguments json.RawMessage) (*interceptor.Result, error) {
	c := a.newCall(fmt.Sprint(a.calls.Add(1)), "tools/call")
	if c.Target.Name, c.Target.Arguments = shown, arguments; shown == "branch_create" || shown == runner.ReturnTool {
		c.Origin.Thread = agentThread
	}
	return a.parent.CallTool(ctx, c)
}

// Return implements [runner.Branch].
func (a *agent) Return(ctx context.Context, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTurn)
	defer cancel()
	res, err := a.do(ctx, runner.ReturnTool, rawjson.Marshal(map[string]string{"branch_id": a.branch.ID, "message": message}))
	if err != nil {
		return err
	}
	text, _ := res.Text()
	if res.Failed() {
		return errors.New(text)
	}
	var out struct{ Message, Status, Reason string }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return fmt.Errorf("the answer of branch_return: %w", err)
	}
	a.answer = agentAnswer{Status: cmp.Or(out.Status, string(folding.StatusCompleted)), Message: out.Message, Reason: out.Reason}
	return nil
}
