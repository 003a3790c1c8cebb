package gosdk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
)

// shownTools returns a page of tools/list as hosts see it: with branch_id, and without output schemas
// where results may be folded.
func (f *Foldgate) shownTools(page json.RawMessage) json.RawMessage {
	if !f.has(Meter | Fold) {
		return page
	}
	all, _ := rawjson.Get(page, "tools")
	out := []byte{'['}
	for item := range rawjson.Elements(all) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, f.toolEntry(item).Shown...)
	}
	return rawjson.Set(page, append(out, ']'), "tools")
}

// toolEntry returns the entry of a tool as the server lists it.
func (f *Foldgate) toolEntry(item json.RawMessage) catalog.Entry {
	name, _ := rawjson.GetString(item, "name")
	if f.owns(name) {
		return catalog.Entry{Name: name, Raw: item, Shown: item}
	}
	shown, e, _, ok := f.rules.Entry(catalog.Tools, f.opts.Server, nil, item)
	switch {
	case !ok:
		return catalog.Entry{Server: f.opts.Server, Name: name, Raw: item, Shown: item}
	case !f.has(Meter): // there are no branches
		if e.Shown, e.TakesBranchID = item, false; !f.cfg.Results.Rule(shown).Off {
			e.Shown = rawjson.Delete(item, "outputSchema")
		}
	case shown != name:
		e.Shown = rawjson.Set(e.Shown, rawjson.Quote(name), "name") // the server knows no shortened name
	}
	return e
}

// entry returns the entry of a tool, empty if the server lists none of that name.
func (r *request) entry(name string) (catalog.Entry, error) {
	t, err := r.tool(name)
	if t == nil || err != nil {
		return catalog.Entry{}, err
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return catalog.Entry{}, err
	}
	return r.f.toolEntry(raw), nil
}

// tool returns a tool that the server lists, or nil.
func (r *request) tool(name string) (*mcp.Tool, error) {
	for cursor := ""; ; {
		req := &mcp.ListToolsRequest{Session: r.ss, Params: &mcp.ListToolsParams{Cursor: cursor}, Extra: r.req.GetExtra()}
		res, err := r.next(context.WithValue(r.ctx, requestKey{}, r), "tools/list", req)
		page, ok := res.(*mcp.ListToolsResult)
		if err != nil || !ok {
			return nil, err
		}
		if i := slices.IndexFunc(page.Tools, func(t *mcp.Tool) bool { return t.Name == name }); i >= 0 {
			return page.Tools[i], nil
		}
		if cursor = page.NextCursor; cursor == "" {
			return nil, nil
		}
	}
}

// FindTools implements [tools.Requester]. A server in a gateway of its own has no search.
func (*request) FindTools(context.Context, string, string, int) ([]json.RawMessage, string, error) {
	return nil, "", nil
}

// Callable implements [tools.Requester]. No branch of a server in a gateway of its own runs by itself.
func (*request) Callable(context.Context) []json.RawMessage { return nil }

// Lifetime implements [tools.Requester].
func (r *request) Lifetime() context.Context { return valued{r.s.lifetime, r.ctx} }

// valued is a context that lives with one context and has the values of another.
type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}

// CallTool implements [tools.Requester]: it makes a call of a branch_run.
func (r *request) CallTool(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	f, name := r.f, c.Target.Name
	e, err := r.entry(name)
	if err != nil {
		return nil, err
	}
	c.Target.Arguments, c.Target.Params = e.BatchParams(name, c.Target.Arguments)
	c.Target.To, c.Target.Forward = "foldgate", c.Target.Params
	denied := func(reason, code string, status int, format string) error {
		return &interceptor.Refusal{Reason: reason, Code: code, Status: status, Message: fmt.Sprintf(format, f.engine.Boundary.Text(name))}
	}
	switch {
	case e.Raw == nil:
		err = denied(trace.ReasonInvalid, "unknown_tool", 404, "Unknown tool: %s (call tools/list for the tools there are)")
	case e.Server == "":
		err = denied(trace.ReasonInvalid, "not_in_batch", 403, "%s can't be part of a batch")
	case !e.ReadOnly() && !f.cfg.Batch.Allows(name):
		err = denied(trace.ReasonPolicy, "not_allowed", 403, "%s does not say that it only reads, and run.allow does not name it: call it directly")
	}
	if err != nil {
		c.Target.Metered = false
		return f.engine.Chain(ctx, c, func(context.Context, *interceptor.Call) (*interceptor.Result, error) { return nil, err })
	}
	c.Target.Server, c.Target.To = f.opts.Server, trace.UpstreamName(f.opts.Server)
	child := &request{f: f, s: r.s, ss: r.ss, next: r.next, ctx: ctx, call: c}
	child.req = &mcp.CallToolRequest{Session: r.ss, Params: &mcp.CallToolParamsRaw{Name: name, Arguments: c.Target.Arguments}, Extra: r.req.GetExtra()}
	return f.engine.Chain(ctx, c, child.askServer)
}
