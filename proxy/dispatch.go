package proxy

import (
	"context"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// callTool serves tools/call.
func (g *Gateway) callTool(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	name, ok := rawjson.GetString(c.Target.Params, "name")
	if !ok {
		return g.refuseParams(fl, c, &wire.Error{Code: wire.CodeInvalidParams, Message: "tools/call needs params.name, a string"})
	}
	c.Target.Metered = true
	c.Target.Name = name
	c.Target.Arguments, _ = rawjson.Get(c.Target.Params, "arguments")
	if t := ownTool(name); t != nil {
		c.Target.Control = t.place == nil
		if t.place != nil {
			t.place(fl, c)
		} else if id, ok := rawjson.GetString(c.Target.Arguments, branchArgument); ok {
			g.branchRecords.Join(g.branches, c, id)
		}
		return g.local(fl, c, t.answer())
	}
	e, ok := g.findTool(fl, name)
	if !ok {
		c.Target.Name = g.boundary.Text(name) // no list has it: it may be anything
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, g.unknownTool(name)
		})
	}
	c.Target.Name, fl.params = e.own, e.params
	if e.shown == nil { // no list has it: it may be anything
		c.Target.Name = g.boundary.Text(e.own)
	}
	if e.own != name {
		c.Target.Forward = rawjson.Set(c.Target.Forward, rawjson.Quote(e.own), "name")
	}
	if id, has := rawjson.Get(c.Target.Arguments, branchArgument); has && e.injected {
		if handle := rawjson.Unquote(id); handle != "" {
			c.Attribution.BranchID, c.Attribution.Source = handle, interceptor.SourceArgument
		} else if k := rawjson.KindOf(id); k != rawjson.String && k != rawjson.Null {
			return g.refuseParams(fl, c, &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("arguments.branch_id is %s; it must be a string from branch_create", id)})
		}
		c.Target.Arguments = rawjson.Delete(c.Target.Arguments, branchArgument)
		c.Target.Forward = rawjson.Set(c.Target.Forward, c.Target.Arguments, "arguments")
	}
	if e.flow != nil {
		e.flow.enter(c)
	}
	return g.forward(fl, c, e.up)
}

// refuseParams refuses a call with params that can't be read, and records it.
func (g *Gateway) refuseParams(fl *inbound, c *interceptor.Call, err error) (*interceptor.Result, error) {
	c.Target.Metered = false
	return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
		c.Outcome.Decision = "invalid"
		return nil, err
	})
}

// findTool looks a tool up in the list that the host sees. A name that is not
// there may belong to an upstream that was down when the list was made.
func (g *Gateway) findTool(fl *inbound, name string) (entry, bool) {
	if e, ok := g.lookup(fl, listTools, name); ok {
		return e, true
	}
	for _, u := range g.ups {
		own, ok := strings.CutPrefix(name, u.Prefix+"__")
		if ok && u.Prefix != "" && fl.s.view(u).peek(listTools) == nil && u.Config.Tools.Shows(own) {
			return entry{up: u, own: own, injected: true, flow: g.unlistedFlow(u, own)}, true
		}
	}
	return entry{}, false
}

func (g *Gateway) unknownTool(name string) error {
	down := ""
	for _, u := range g.ups {
		if state, fault := u.Status(); state == "failed" {
			down += fmt.Sprintf("; upstream %s is down: %v", u.Key, fault)
		}
	}
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("Unknown tool: %s (call tools/list for the tools there are%s)", name, down)}
}

// getPrompt serves prompts/get.
func (g *Gateway) getPrompt(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	name, _ := rawjson.GetString(c.Target.Params, "name")
	c.Target.Metered, c.Target.Name = true, name
	e, ok := g.lookup(fl, listPrompts, name)
	if !ok {
		c.Target.Name = g.boundary.Text(name)
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "Unknown prompt: " + name}
		})
	}
	c.Target.Name = e.own
	if e.own != name {
		c.Target.Forward = rawjson.Set(c.Target.Forward, rawjson.Quote(e.own), "name")
	}
	return g.forward(fl, c, e.up)
}

// resource serves the methods that name a resource by its URI.
func (g *Gateway) resource(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	uri, _ := rawjson.GetString(c.Target.Params, "uri")
	c.Target.Name, c.Target.Metered = uri, c.Target.Method == "resources/read"
	owners := g.owners(fl, uri)
	if len(owners) == 0 {
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, notFound(fl.modern, uri)
		})
	}
	switch c.Target.Method {
	case "resources/subscribe":
		return g.subscribeHost(fl, c, uri, owners)
	case "resources/unsubscribe":
		fl.s.dropSubscription(owners[0], uri)
	}
	return g.toOwners(fl, c, owners)
}

// toOwners sends a request to the one that has what it names, if that is known.
func (g *Gateway) toOwners(fl *inbound, c *interceptor.Call, owners []*upstream.Server) (*interceptor.Result, error) {
	if len(owners) == 1 {
		return g.forward(fl, c, owners[0])
	}
	return g.firstThatKnows(fl, c, owners)
}

// subscribeHost serves resources/subscribe. What fails is not made again when the
// upstream restarts.
func (g *Gateway) subscribeHost(fl *inbound, c *interceptor.Call, uri string, owners []*upstream.Server) (*interceptor.Result, error) {
	fresh, ok := fl.s.noteSubscription(owners[0], uri) // before the call: the upstream may end right after it
	if !ok {
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, tooManySubscriptions()
		})
	}
	res, err := g.toOwners(fl, c, owners)
	if fresh && (err != nil || res.Error != nil) {
		fl.s.dropSubscription(owners[0], uri)
	}
	return res, err
}

// notFound is the protocol's answer for a URI that nobody has.
func notFound(modern bool, uri string) *wire.Error {
	if uri == "" {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: "params.uri is missing: name the resource, as resources/list does"}
	}
	code := -32002
	if modern {
		code = wire.CodeInvalidParams
	}
	return &wire.Error{Code: code, Message: "Resource not found: " + uri, Data: rawjson.Marshal(map[string]string{"uri": uri})}
}

// owners returns who may have a resource: the one that lists it, the one whose
// template fits, else everyone with resources, to be asked in turn.
func (g *Gateway) owners(fl *inbound, uri string) []*upstream.Server {
	if e, ok := g.lookup(fl, listResources, uri); ok {
		return []*upstream.Server{e.up}
	}
	templates := g.menu(fl.ctx, fl.s, listTemplates, fl.modern, nil)
	for _, u := range g.ups {
		for _, e := range templates.entries {
			if e.up == u && templateFits(e.own, uri) {
				return []*upstream.Server{u}
			}
		}
	}
	var all []*upstream.Server
	for _, u := range g.ups {
		if u.Capability("resources") != nil {
			all = append(all, u)
		}
	}
	return all
}

// templateFits reports whether uri could come from an RFC 6570 template: its
// literal parts occur in order, the first at the start and the last at the end.
func templateFits(template, uri string) bool {
	rest, first := uri, true
	for template != "" {
		literal, after, more := strings.Cut(template, "{")
		i := strings.Index(rest, literal)
		if i < 0 || (first && i > 0) {
			return false
		}
		rest, first = rest[i+len(literal):], false
		if !more {
			return rest == "" || strings.HasSuffix(uri, literal)
		}
		_, template, _ = strings.Cut(after, "}")
	}
	return true
}

// firstThatKnows asks the owners in turn until one does not say "not found".
func (g *Gateway) firstThatKnows(fl *inbound, c *interceptor.Call, owners []*upstream.Server) (*interceptor.Result, error) {
	for _, u := range owners {
		c.Target.Candidates = append(c.Target.Candidates, u.Key)
	}
	fl.setCall(c)
	return g.through(fl.ctx, c, func(ctx context.Context, c *interceptor.Call) (res *interceptor.Result, err error) {
		for _, u := range owners {
			fl.arrived() // the last one's answer goes nowhere
			c.Target.Server, c.Target.To = u.Key, "upstream:"+u.Key
			res, err = g.send(ctx, fl, c, u)
			if err != nil || res.Error == nil {
				return res, err
			}
			if code, _ := rawjson.Get(res.Error, "code"); string(code) != "-32002" && string(code) != "-32602" && string(code) != "-32601" {
				return res, nil
			}
		}
		return res, err
	})
}

// complete serves completion/complete: the reference says whose it is.
func (g *Gateway) complete(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	if uri, ok := rawjson.GetString(c.Target.Params, "ref", "uri"); ok {
		c.Target.Name = uri
		if e, ok := g.lookup(fl, listTemplates, uri); ok {
			return g.forward(fl, c, e.up)
		}
		if owners := g.owners(fl, uri); len(owners) > 0 {
			return g.firstThatKnows(fl, c, owners)
		}
	}
	name, _ := rawjson.GetString(c.Target.Params, "ref", "name")
	if e, ok := g.lookup(fl, listPrompts, name); ok {
		c.Target.Name = e.own
		if e.own != name {
			c.Target.Forward = rawjson.Set(c.Target.Forward, rawjson.Quote(e.own), "ref", "name")
		}
		return g.forward(fl, c, e.up)
	}
	return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
		return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "params.ref names no prompt or resource template that there is"}
	})
}

// other serves methods that foldgate does not know, and those of tasks: they
// go to the upstream that minted the task, else to each in turn until one
// knows the method.
func (g *Gateway) other(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	owners := g.ups
	if id, ok := rawjson.GetString(c.Target.Params, "taskId"); ok {
		fl.s.mu.Lock()
		t := fl.s.tasks[id]
		fl.s.mu.Unlock()
		if u := g.byKey[t.upstream]; u != nil {
			owners = []*upstream.Server{u}
		}
		if c.Target.Method == interceptor.MethodTaskResult { // a tool's result, only later
			if c.Target.Name, c.Target.Metered = t.tool, true; c.Attribution.BranchID == "" && t.branch != "" {
				c.Attribution.BranchID, c.Attribution.Source = t.branch, interceptor.SourceCause
			}
		}
	}
	var able []*upstream.Server
	for _, u := range owners {
		if !u.Builtin() {
			able = append(able, u)
		}
	}
	switch len(able) {
	case 0:
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, &wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + c.Target.Method}
		})
	case 1:
		return g.forward(fl, c, able[0])
	}
	return g.firstThatKnows(fl, c, able)
}
