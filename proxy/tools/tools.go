// Package tools has foldgate's own tools: branch_create, branch_return, branch_status, branch_read
// and branch_run, and find_tools and call_tool if hosts may search.
package tools

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/internal/arguments"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/runner"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Request is a request that foldgate's own tools serve.
type Request struct {
	Call *interceptor.Call // the request in the chain
	Requester
}

// Requester is the sender of a [Request]. It hears how far the request is, and the tools make further calls
// in its name: those of batches, of models that foldgate runs, and of memory tools.
type Requester interface {
	// Notify sends it a notification. It does not block.
	Notify(wire.Message)
	// Lifetime returns the context in which a batch goes on after its request.
	Lifetime() context.Context
	// CallTool runs a further call down the chain. c has its origin, the shown name of the tool, its
	// arguments and its branch; CallTool completes the target. An error says why there is no result: the
	// tool is unknown, must not be called so, or failed.
	CallTool(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error)
	// Callable returns the definitions of the tools that CallTool calls, as models read them.
	Callable(ctx context.Context) []json.RawMessage
	// FindTools finds tools by words, or all of a server, and returns the definitions of the first limit.
	FindTools(ctx context.Context, query, server string, limit int) (definitions []json.RawMessage, note string, err error)
}

// Options configure the tools. All fields are required.
type Options struct {
	Config   func() *config.Config // the configuration in force
	Branches *folding.Manager
	Limits   func() *interceptor.Limits // in force, nil for none
	Results  *results.Store
	Counter  *budget.Counter
	Programs *extract.Programs
	Boundary *interceptor.Boundary
	Records  *interceptor.BranchRecords
	Log      *slog.Logger
}

// Tools are foldgate's own tools. All methods are safe for concurrent use.
type Tools struct {
	Options
	lifetime context.Context
	open     func(config.LLM) runner.Model // nil: no branch runs by itself
	chain    interceptor.Chain             // down which the requests to models go
	wg       sync.WaitGroup                // the batches and agents under way

	mu sync.Mutex
	// batches are the batches under way and those with an answer that was not fetched yet, by handle.
	batches map[string]*batch
	// agents work in branches that run by themselves, or have an answer that was not fetched yet, by branch.
	agents map[string]*agent
	// tasks are the calls of branch_create that became tasks, by the ids of their branches.
	tasks map[string]*task
}

// New returns the tools. Batches end with lifetime.
func New(lifetime context.Context, o Options) *Tools {
	return &Tools{Options: o, lifetime: lifetime, batches: map[string]*batch{}, agents: map[string]*agent{}, tasks: map[string]*task{}}
}

// SetModels lets branches run by themselves, if the configuration has a model, which open opens. The requests to it
// go down the chain.
func (t *Tools) SetModels(open func(config.LLM) runner.Model, chain interceptor.Chain) {
	t.open, t.chain = open, chain
}

// Instructions tell the model when to branch. Every session pays for them, so they state one rule
// and the three steps.
const Instructions = "foldgate isolates subtasks. When a task needs more than two reads or searches, open a branch: " +
	"branch_create, pass its branch_id to every call you make for the subtask (or hand it to a subagent), then branch_return with a short summary of the findings. " +
	"For many similar calls use branch_run. Large results arrive as previews; branch_read shows the rest. Secrets are replaced by [REDACTED:rule]."

// alwaysLoad asks hosts that load tools on demand to show these from the start.
const alwaysLoad = `"_meta":{"anthropic/alwaysLoad":true}`

// Indexes of definitions, in the order of the list.
const (
	iCreate = iota
	iReturn
	iStatus
	iRead
	iRun
)

// definitions are listed to every host, whatever the state of its branches.
var definitions = []json.RawMessage{
	iCreate: json.RawMessage(`{"name":"branch_create",` +
		`"description":"Open an isolated branch for a subtask. Pass its branch_id to the calls for it, which its token budget pays. End it with branch_return.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"description":{"type":"string","description":"What the branch will do","maxLength":500},` +
		`"prompt":{"type":"string","maxLength":10000},` +
		`"budget":{"type":"number","description":"Tokens"},` +
		`"timeout_seconds":{"type":"number"},` +
		`"parent_branch_id":{"type":"string"},` +
		`"handles":{"type":"array","items":{"type":"string"},"description":"Results it may read"},` +
		`"run":{"type":"boolean","description":"foldgate does the subtask and returns its message. prompt must have all it needs"},` +
		`"wait":{"type":"boolean","description":"false: only start it; branch_status has the message"},` +
		`"session_id":{"type":"string"}},"required":["description"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"openWorldHint":false},"execution":{"taskSupport":"optional"},` + alwaysLoad + `}`),
	iReturn: json.RawMessage(`{"name":"branch_return",` +
		`"description":"End a branch and hand its result to the parent. Branches inside it end first.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"branch_id":{"type":"string"},` +
		`"message":{"type":"string","description":"Short summary of the findings","maxLength":50000}},"required":["branch_id","message"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"openWorldHint":false},` + alwaysLoad + `}`),
	iStatus: json.RawMessage(`{"name":"branch_status",` +
		`"description":"State and budget of a branch, by default the active one.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"branch_id":{"type":"string"},"session_id":{"type":"string"},` +
		`"wait_seconds":{"type":"number","minimum":0,"description":"Wait for the branch that runs, without branch_id for all"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`),
	iRead: json.RawMessage(`{"name":"branch_read",` +
		`"description":"Read part of a folded result: lines, grep (RE2; with context, or count), jq, search, or pages.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"handle":{"type":"string"},` +
		`"lines":{"type":"string","description":"120-140, 120- or -50; also limits grep"},` +
		`"grep":{"type":"string"},` +
		`"context":{"type":"number"},"count":{"type":"boolean"},` +
		`"jq":{"type":"string"},"search":{"type":"string"},"page":{"type":"number"},"max_tokens":{"type":"number"},` +
		`"branch_id":{"type":"string"}},"required":["handle"],"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`),
	iRun: json.RawMessage(`{"name":"branch_run",` +
		`"description":"Make many read-only calls at once and get only what grep or jq lets through. Give tool and each (its arguments, one object a call), or steps.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"tool":{"type":"string"},"each":{"type":"array","items":{"type":"object"}},` +
		`"steps":{"type":"array","items":{"type":"object","properties":{"tool":{"type":"string"},"arguments":{"type":"object"}}}},` +
		`"grep":{"type":"string"},"jq":{"type":"string","description":"Input: [{step,tool,arguments,result|error}]"},` +
		`"max_tokens":{"type":"number"},"parallel":{"type":"number"},` +
		`"description":{"type":"string"},"branch_id":{"type":"string"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true},` + alwaysLoad + `}`),
}

// Definitions returns the definitions of the tools, in the order of the list. They require what
// the configuration requires. Without a model for branches that run by themselves, no definition is about
// these: each session pays for every word.
func Definitions(c folding.Config, runs bool) []json.RawMessage {
	all := slices.Clone(definitions)
	if c.RequireSessionID {
		all[iCreate] = rawjson.Set(all[iCreate], []byte(`["description","session_id"]`), "inputSchema", "required")
	}
	if !runs {
		for i, names := range map[int][]string{iCreate: {"run", "wait"}, iStatus: {"wait_seconds"}} {
			left, _ := rawjson.Get(all[i], "inputSchema", "properties")
			for _, name := range names {
				left = rawjson.Delete(left, name)
			}
			all[i] = rawjson.Set(all[i], left, "inputSchema", "properties")
		}
		all[iCreate] = rawjson.Delete(all[iCreate], "execution")
	}
	return all
}

// properties are the properties of the tools' input schemas, by tool.
var properties = func() map[string][]byte {
	m := map[string][]byte{}
	for _, d := range slices.Concat(definitions, searchDefinitions) {
		name, _ := rawjson.GetString(d, "name")
		m[name], _ = rawjson.Get(d, "inputSchema", "properties")
	}
	return m
}()

// Has reports whether foldgate always has a tool of its own called name. find_tools and call_tool are only there
// if hosts may search: else an upstream may have tools of these names.
func Has(name string) bool { return properties[name] != nil && !config.ForSearch(name) }

// Has reports whether foldgate has a tool of its own called name.
func (t *Tools) Has(name string) bool {
	return Has(name) || config.ForSearch(name) && t.Config().Tools.Searchable()
}

// derived returns the origin of a call that foldgate makes for a host's call. id names it in the trace.
func derived(parent *interceptor.Call, id string) interceptor.Origin {
	from := &parent.Origin
	return interceptor.Origin{
		Direction: interceptor.FromHost, Identity: from.Identity, Session: from.Session, From: "foldgate", Revision: from.Revision,
		ID: rawjson.Quote(id), Correlates: []string{parent.Outcome.Record}, Traceparent: from.Traceparent,
	}
}

// Attribute finds the branch that pays for a call of an own tool, which has its name and arguments.
// The tools that manage branches are never charged or refused for budget.
func (t *Tools) Attribute(ctx context.Context, c *interceptor.Call) {
	id, _ := rawjson.GetString(c.Target.Arguments, "branch_id")
	switch c.Target.Name {
	case "branch_read", "branch_run", config.FindTools:
		if id != "" {
			c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceArgument
		} else if c.Target.Name == "branch_read" {
			t.attributeRead(ctx, c)
		}
	default:
		c.Target.Control = true
		if id != "" {
			t.Records.Join(t.Branches, c, id)
		}
	}
}

// Call serves a tools/call, or a request about the task of one, and returns its result.
func (t *Tools) Call(ctx context.Context, r *Request) (body []byte, err error) {
	if r.Call.Target.Method != "tools/call" {
		return t.aboutTask(ctx, r)
	}
	switch r.Call.Target.Name {
	case "branch_create":
		body, err = t.create(ctx, r)
	case "branch_return":
		body, err = t.finish(ctx, r)
	case "branch_status":
		body, err = t.status(ctx, r)
	case "branch_read":
		body, err = t.read(ctx, r)
	case config.FindTools:
		body, err = t.find(ctx, r)
	default:
		body, err = t.runBatch(ctx, r)
	}
	if err == nil || err == context.Cause(ctx) { // the host no longer waits
		return body, err
	}
	if wrong, ok := errors.AsType[*extract.Error](err); ok {
		err = folding.Errorf(folding.ErrInvalidInput, "%w", wrong)
	}
	return nil, interceptor.FoldingRefusal(err)
}

// Close waits for the batches under way, which end with the lifetime given to New, and stops the
// timers of the others and of tasks.
func (t *Tools) Close() {
	t.wg.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.batches {
		if b.expiry != nil {
			b.expiry.Stop()
		}
	}
	for _, k := range t.tasks {
		k.expiry.Stop()
	}
}

// decode decodes the arguments of an own tool as its schema says.
func decode(c *interceptor.Call, into any) error {
	if err := arguments.Decode(c.Target.Name, properties[c.Target.Name], c.Target.Arguments, into); err != nil {
		return folding.Errorf(folding.ErrInvalidInput, "%w", err)
	}
	return nil
}

// plain returns a tool result that is read as a text. It has no structured content: escaping a text
// in JSON only costs tokens.
func plain(c *interceptor.Call, text string) []byte {
	out := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(text)...)
	out = append(out, `}]`...)
	if modern(c) {
		out = append(out, `,"resultType":"complete"`...)
	}
	return append(out, '}')
}

// structured returns a tool result with v as its structured content and as its text.
func structured(c *interceptor.Call, v any) []byte {
	return interceptor.ToolResult(rawjson.Marshal(v), false, modern(c))
}

// modern reports whether the host's revision is of the modern era, which wants a resultType.
func modern(c *interceptor.Call) bool { return c.Origin.Revision >= wire.VersionModern }
