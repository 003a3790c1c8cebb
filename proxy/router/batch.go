package router

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Notify implements [tools.Requester].
func (r *request) Notify(m wire.Message) { r.s.received(source{r: r, cause: causeOf(r.call)}, m) }

// Lifetime implements [tools.Requester]: a batch goes on with its session, unless the session is the
// request's alone.
func (r *request) Lifetime() context.Context {
	if r.s.SingleRequest {
		return r.s.rt.lifetime
	}
	return r.s.lifetime
}

// Callable implements [tools.Requester]: it returns what a model reads of the tools that a batch of the
// request may call, by their shown names, in the order of the list.
func (r *request) Callable(ctx context.Context) (definitions []json.RawMessage) {
	rt := r.s.rt
	merged, _ := r.s.Catalog(ctx, listWait, catalog.Tools, []string{r.call.Outcome.Record})
	seen := merged.For(r.call.Origin.Identity)
	for _, shown := range seen.Order {
		if e, _ := seen.Lookup(shown); e.Server != "" && (e.ReadOnly() || rt.Settings().Config.Batch.Allows(shown)) {
			definitions = append(definitions, e.Readable())
		}
	}
	return definitions
}

// CallTool implements [tools.Requester]: it runs one call of a batch, or of a branch that runs by itself, down
// the chain. r is the branch_run, or the branch_create. The calls of a batch have a handle, and are not of
// foldgate's own tools. A call of foldgate itself (Internal) is of a tool that the configuration names, which
// need not be read-only.
func (r *request) CallTool(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	rt, name := r.s.rt, c.Target.Name
	e, ok := r.s.findTool(ctx, name)
	c.Target.Arguments, c.Target.Params = e.BatchParams(name, c.Target.Arguments)
	c.Target.To, c.Target.Forward = "foldgate", c.Target.Params
	child := &request{
		Request: &server.Request{Msg: wire.Message{ID: c.Origin.ID, Method: c.Target.Method, Params: c.Target.Params}, Emit: r.Emit},
		s:       r.s, entry: e, call: c,
	}
	child.lifetime, child.cancel = context.WithCancelCause(ctx)
	defer child.cancel(nil)
	defer child.ticket.done()
	defer child.releaseServers()
	var err error
	denied := func(reason, code, format string) error {
		return &interceptor.Refusal{Reason: reason, Code: code, Status: 403, Message: fmt.Sprintf(format, name)}
	}
	ask, st := interceptor.Handler(child.callOwnTool), rt.Settings()
	switch {
	case !st.Config.Knows(c.Origin.Principal): // a reload removed it meanwhile
		err = denied(trace.ReasonPolicy, "forbidden", "%s was not called: the principal of the batch may no longer use foldgate")
	case !ok:
		err = child.unknownTool(name, e)
	case e.Server == "" && c.Target.Batch == "": // of a branch that runs by itself
		rt.Tools.Attribute(child.lifetime, c)
	case e.Server == "":
		err = denied(trace.ReasonInvalid, "not_in_batch", "%s can't be part of a batch")
	case !e.ReadOnly() && c.Origin.Direction != interceptor.Internal && !st.Config.Batch.Allows(name): // hosts ask their user about each tool, which a batch must not get around
		c.Target.Server, c.Target.Name = e.Server, e.Name
		err = denied(trace.ReasonPolicy, "not_allowed", "%s does not say that it only reads, and run.allow does not name it: call it directly")
	default:
		if err = child.target(e, name, e.Name); err == nil {
			ask = child.toServers(rt.Settings().One(e.Server))
		}
	}
	if err != nil {
		ask = child.refuseParams(err)
	}
	return rt.Chain(child.lifetime, c, ask)
}
