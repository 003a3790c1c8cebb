package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// callTool serves tools/call.
func (g *Gateway) callTool(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	name, ok := rawjson.GetString(c.Params, "name")
	if !ok {
		return nil, &rpcError{Code: codeInvalidParams, Message: "tools/call needs params.name, a string"}
	}
	c.Metered = true
	c.Name = name
	c.Arguments, _ = rawjson.Get(c.Params, "arguments")
	if t := ownTool(name); t != nil {
		c.Control = t.place == nil
		if t.place != nil {
			t.place(fl, c)
		} else if id, ok := rawjson.GetString(c.Arguments, branchArgument); ok {
			g.joinBranch(c, id)
		}
		return g.local(fl, c, t.answer())
	}
	e, ok := g.findTool(fl, name)
	if !ok {
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, g.unknownTool(name)
		})
	}
	c.Name, fl.params = e.own, e.params
	if e.own != name {
		c.Forward = rawjson.Set(c.Forward, rawjson.Quote(e.own), "name")
	}
	if id, has := rawjson.Get(c.Arguments, branchArgument); has && e.injected {
		if handle := rawjson.Unquote(id); handle != "" {
			c.Handle, c.HandleRung = handle, interceptor.RungArgument
		} else if k := rawjson.KindOf(id); k != rawjson.String && k != rawjson.Null {
			return nil, &rpcError{Code: codeInvalidParams, Message: fmt.Sprintf("arguments.branch_id is %s; it must be a string from branch_create", id)}
		}
		c.Arguments = rawjson.Delete(c.Arguments, branchArgument)
		c.Forward = rawjson.Set(c.Forward, c.Arguments, "arguments")
	}
	if e.flow != nil {
		e.flow.enter(c)
	}
	return g.forward(fl, c, e.up)
}

// findTool looks a tool up in the list that the host sees. A name that is not
// there may belong to an upstream that was down when the list was made.
func (g *Gateway) findTool(fl *inbound, name string) (entry, bool) {
	if e, ok := g.lookup(fl, listTools, name); ok {
		return e, true
	}
	for _, u := range g.ups {
		own, ok := strings.CutPrefix(name, u.prefix+"__")
		if ok && u.prefix != "" && fl.s.view(u).peek(listTools) == nil && u.cfg.Tools.shows(own) {
			return entry{up: u, own: own, injected: true}, true
		}
	}
	return entry{}, false
}

func (g *Gateway) unknownTool(name string) error {
	down := ""
	for _, u := range g.ups {
		if state, fault := u.status(); state == "failed" {
			down += fmt.Sprintf("; upstream %s is down: %v", u.key, fault)
		}
	}
	return &rpcError{Code: codeInvalidParams, Message: fmt.Sprintf("Unknown tool: %s (call tools/list for the tools there are%s)", name, down)}
}

// getPrompt serves prompts/get.
func (g *Gateway) getPrompt(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	name, _ := rawjson.GetString(c.Params, "name")
	c.Metered, c.Name = true, name
	e, ok := g.lookup(fl, listPrompts, name)
	if !ok {
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, &rpcError{Code: codeInvalidParams, Message: "Unknown prompt: " + name}
		})
	}
	c.Name = e.own
	if e.own != name {
		c.Forward = rawjson.Set(c.Forward, rawjson.Quote(e.own), "name")
	}
	return g.forward(fl, c, e.up)
}

// resource serves the methods that name a resource by its URI.
func (g *Gateway) resource(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	uri, _ := rawjson.GetString(c.Params, "uri")
	c.Name, c.Metered = uri, c.Method == "resources/read"
	owners := g.owners(fl, uri)
	if len(owners) == 0 {
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, notFound(fl.modern, uri)
		})
	}
	if c.Method != "resources/read" {
		fl.s.noteSubscription(owners[0], uri, c.Method == "resources/subscribe")
	}
	if len(owners) == 1 {
		return g.forward(fl, c, owners[0])
	}
	return g.firstThatKnows(fl, c, owners)
}

// notFound is the protocol's answer for a URI that nobody has.
func notFound(modern bool, uri string) *rpcError {
	code := -32002
	if modern {
		code = codeInvalidParams
	}
	return &rpcError{Code: code, Message: "Resource not found: " + uri, Data: rawjson.Marshal(map[string]string{"uri": uri})}
}

// owners returns who may have a resource: the one that lists it, the one whose
// template fits, else everyone with resources, to be asked in turn.
func (g *Gateway) owners(fl *inbound, uri string) []*upstream {
	if e, ok := g.lookup(fl, listResources, uri); ok {
		return []*upstream{e.up}
	}
	templates := g.menu(fl.ctx, fl.s, listTemplates, fl.modern, nil)
	for _, u := range g.ups {
		for _, e := range templates.entries {
			if e.up == u && templateFits(e.own, uri) {
				return []*upstream{u}
			}
		}
	}
	var all []*upstream
	for _, u := range g.ups {
		if u.capability("resources") != nil {
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
func (g *Gateway) firstThatKnows(fl *inbound, c *interceptor.Call, owners []*upstream) (*interceptor.Result, error) {
	fl.setCall(c)
	return g.through(fl.ctx, c, func(ctx context.Context, c *interceptor.Call) (res *interceptor.Result, err error) {
		for _, u := range owners {
			c.Server, c.To = u.key, "upstream:"+u.key
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
	if uri, ok := rawjson.GetString(c.Params, "ref", "uri"); ok {
		c.Name = uri
		if e, ok := g.lookup(fl, listTemplates, uri); ok {
			return g.forward(fl, c, e.up)
		}
		if owners := g.owners(fl, uri); len(owners) > 0 {
			return g.firstThatKnows(fl, c, owners)
		}
	}
	name, _ := rawjson.GetString(c.Params, "ref", "name")
	if e, ok := g.lookup(fl, listPrompts, name); ok {
		c.Name = e.own
		if e.own != name {
			c.Forward = rawjson.Set(c.Forward, rawjson.Quote(e.own), "ref", "name")
		}
		return g.forward(fl, c, e.up)
	}
	return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
		return nil, &rpcError{Code: codeInvalidParams, Message: "params.ref names no prompt or resource template that there is"}
	})
}

// other serves methods that foldgate does not know, and those of tasks: they
// go to the upstream that minted the task, else to each in turn until one
// knows the method.
func (g *Gateway) other(fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	owners := g.ups
	if id, ok := rawjson.GetString(c.Params, "taskId"); ok {
		fl.s.mu.Lock()
		u := g.byKey[fl.s.tasks[id]]
		fl.s.mu.Unlock()
		if u != nil {
			owners = []*upstream{u}
		}
	}
	var able []*upstream
	for _, u := range owners {
		if u.cfg.Builtin == "" {
			able = append(able, u)
		}
	}
	switch len(able) {
	case 0:
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, &rpcError{Code: codeMethodNotFound, Message: "Method not found: " + c.Method}
		})
	case 1:
		return g.forward(fl, c, able[0])
	}
	return g.firstThatKnows(fl, c, able)
}

// forward runs c down the chain and on to u.
func (g *Gateway) forward(fl *inbound, c *interceptor.Call, u *upstream) (*interceptor.Result, error) {
	c.Server, c.To = u.key, "upstream:"+u.key
	fl.setCall(c)
	return g.through(fl.ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		return g.send(ctx, fl, c, u)
	})
}

// send is the end of the chain: the request leaves for the upstream. An
// upstream that forgot the session did nothing, so it is asked once more, in a
// new one.
func (g *Gateway) send(ctx context.Context, fl *inbound, c *interceptor.Call, u *upstream) (*interceptor.Result, error) {
	res, err := g.sendUp(ctx, fl, c, u)
	if errors.Is(err, errSessionGone) && ctx.Err() == nil {
		return g.sendUp(ctx, fl, c, u)
	}
	return res, err
}

func (g *Gateway) sendOnce(ctx context.Context, fl *inbound, c *interceptor.Call, u *upstream) (*interceptor.Result, error) {
	l, err := fl.s.linkFor(ctx, u, fl.modern)
	if err != nil {
		return nil, upstreamDown(ctx, u, err)
	}
	fl.s.mu.Lock()
	fl.to = u.key
	fl.s.mu.Unlock()
	if u.cfg.TimeoutSeconds > 0 {
		limit := time.Duration(u.cfg.TimeoutSeconds) * time.Second
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &interceptor.Refusal{
			Reason: "timeout", Code: "upstream_timeout", Status: 504,
			Message: fmt.Sprintf("%s did not answer within %s (timeout_seconds of upstream %s) and was cancelled; ask for less, or have the limit raised", c.Name, limit, u.key),
		})
		defer cancel()
	}
	if fl.modern {
		defer u.enter(fl)()
	}
	c.Forward = withTraceparent(c.Forward, c.Outgoing())
	switch {
	case fl.modern && !l.info().Modern():
		return g.sendParked(ctx, fl, c, u, l)
	case !fl.modern && l.info().Modern():
		return g.sendRounds(ctx, fl, c, u, l)
	}
	m, err := l.call(ctx, fl.linkCall(g, c, u, l, c.Forward))
	if err != nil {
		return nil, callFault(ctx, u, c, err)
	}
	if _, task := rawjson.Get(c.Params, "task"); task || strings.HasPrefix(c.Method, "tasks/") {
		fl.s.noteTask(m.Result, u)
	}
	fl.extra = g.cleanExtra(ctx, u, m)
	return resultOf(m), nil
}

// linkCall describes c to the link l.
func (fl *inbound) linkCall(g *Gateway, c *interceptor.Call, u *upstream, l link, params json.RawMessage) *linkCall {
	return &linkCall{
		Method: c.Method, Params: params, Extra: fl.ex.Msg.Extra, Header: bindHeaders(forwardHeader(fl.ex.Header), fl.params, c.Arguments), HostID: fl.ex.Msg.ID,
		Event: func(m Message) { g.fromCall(fl, u, l, m) },
	}
}

func resultOf(m Message) *interceptor.Result {
	return &interceptor.Result{Body: m.Result, Error: m.Error}
}

// upstreamDown is a call that never left.
func upstreamDown(ctx context.Context, u *upstream, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return &interceptor.Refusal{Reason: "upstream", Code: "upstream_unavailable", Status: 502, Err: err,
		Message: fmt.Sprintf("%v. Nothing was sent; try again in a few seconds, or go on without the tools of %s", err, u.key)}
}

// callFault is a call that left and did not come back.
func callFault(ctx context.Context, u *upstream, c *interceptor.Call, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, errLinkClosed) || errors.Is(err, errSessionGone) {
		return &interceptor.Refusal{Reason: "upstream", Code: "upstream_crashed", Status: 502, Err: err,
			Message: fmt.Sprintf("upstream %s ended while it handled %s: %v. The call may have had an effect; the upstream is started again with the next call", u.key, c.Name, err)}
	}
	return &interceptor.Refusal{Reason: "upstream", Code: "upstream_failed", Status: 502, Err: err, Message: fmt.Sprintf("upstream %s: %v", u.key, err)}
}

// noteTask remembers which upstream minted a task, to route tasks/* to it.
func (s *session) noteTask(result []byte, u *upstream) {
	id, ok := rawjson.GetString(result, "task", "taskId")
	if !ok {
		if id, ok = rawjson.GetString(result, "taskId"); !ok {
			return
		}
	}
	s.mu.Lock()
	s.tasks[id] = u.key
	s.mu.Unlock()
}

// noteSubscription keeps what must be made again when the upstream restarts.
func (s *session) noteSubscription(u *upstream, uri string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		if s.subs[u.key] == nil {
			s.subs[u.key] = map[string]bool{}
		}
		s.subs[u.key][uri] = true
	} else {
		delete(s.subs[u.key], uri)
	}
}
