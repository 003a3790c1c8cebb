package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Keys that a host may set in _meta for foldgate; they are never forwarded.
const (
	metaPrefix      = "io.github.foldgate/"
	metaBranchID    = metaPrefix + "branch_id"
	metaContext     = metaPrefix + "context"
	metaCorrelation = metaPrefix + "correlationId"
	// metaCorrelationAlias is its later name.
	metaCorrelationAlias = metaPrefix + "correlation_id"
	// metaExpires is one that foldgate sets: when the branch just made ends at the latest.
	metaExpires = metaPrefix + "expires_at"
)

// Begin takes one request of a host: from here on it is in flight.
func (s *session) Begin(ctx context.Context, ex *edge.Exchange) (serve func() edge.Reply) {
	fl, err := s.begin(ctx, ex)
	if err != nil {
		return func() edge.Reply { return s.gw.readable(edge.Reply{Error: errorObject(err)}) }
	}
	return func() edge.Reply {
		defer s.end(fl)
		r := edge.Reply{}
		defer func() {
			if r.Sent == nil { // it came to a panic
				fl.arrived()
			}
		}()
		r = s.serve(fl)
		r.Sent = fl.arrived
		return r
	}
}

// serve answers a request in flight.
func (s *session) serve(fl *inbound) edge.Reply {
	g, ex := s.gw, fl.ex
	fl.modern = isModern(s, ex.Msg)
	res, err := g.route(fl)
	if cause := context.Cause(fl.ctx); err != nil && errors.Is(cause, errCancelledByHost) {
		return edge.Reply{} // the host no longer waits
	}
	if ex.Msg.Method == wire.MethodListen && fl.ctx.Err() != nil {
		return edge.Reply{} // it ends with its stream, not with an answer
	}
	if err != nil {
		return g.readable(refusalReply(ex.Msg.Method, fl.modern, cutOff(fl.ctx, err)))
	}
	return edge.Reply{Result: res.Body, Error: res.Error, Extra: res.Extra}
}

// isModern reports whether the host speaks the modern era in this request. One
// that asks what there is (server/discover) may not have said so yet.
func isModern(s *session, m wire.Message) bool {
	if s.Modern {
		return true
	}
	v, ok := rawjson.GetString(m.Params, "_meta", wire.MetaProtocolVersion)
	return (ok && v >= wire.VersionModern) || m.Method == "server/discover"
}

// route sends a request to whoever answers it, down the chain.
func (g *Gateway) route(fl *inbound) (*interceptor.Result, error) {
	m := fl.ex.Msg
	c, err := g.newCall(fl)
	if err != nil {
		return g.refuseParams(fl, c, err)
	}
	if fl.modern && legacyOnly[m.Method] {
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return nil, &wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + m.Method + " is not part of revision " + wire.VersionModern}
		})
	}
	switch m.Method {
	case "initialize":
		return g.local(fl, c, g.answerInitialize)
	case "server/discover":
		return g.local(fl, c, g.answerDiscover)
	case "ping":
		return g.local(fl, c, func(context.Context, *inbound, *interceptor.Call) (*interceptor.Result, error) {
			return &interceptor.Result{Body: json.RawMessage(`{}`)}, nil
		})
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		return g.local(fl, c, g.answerList)
	case "tools/call":
		return g.callTool(fl, c)
	case "prompts/get":
		return g.getPrompt(fl, c)
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return g.resource(fl, c)
	case "completion/complete":
		return g.complete(fl, c)
	case "logging/setLevel":
		return g.local(fl, c, g.setLevel)
	case "subscriptions/listen":
		return g.local(fl, c, g.listen)
	}
	return g.other(fl, c)
}

// legacyOnly are the methods that revision 2026-07-28 removed.
var legacyOnly = map[string]bool{
	"initialize": true, "ping": true, "logging/setLevel": true, "resources/subscribe": true, "resources/unsubscribe": true,
}

// answer is a handler of foldgate's own.
type answer func(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error)

// local runs a request that foldgate answers itself down the chain.
func (g *Gateway) local(fl *inbound, c *interceptor.Call, a answer) (*interceptor.Result, error) {
	fl.setCall(c)
	return g.through(fl.ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		return a(ctx, fl, c)
	})
}

// newCall describes a host's request to the chain. With an error, the call is to be
// refused.
func (g *Gateway) newCall(fl *inbound) (*interceptor.Call, error) {
	s, m := fl.s, fl.ex.Msg
	if rawjson.KindOf(m.Params) == rawjson.Null { // some hosts write what they don't have
		m.Params = nil
	}
	c := &interceptor.Call{
		Origin: interceptor.Origin{
			Direction: interceptor.FromHost, Session: s.ID, Principal: s.Principal, From: s.host(),
			Revision: s.speaks(fl), Transport: s.network(), ID: m.ID,
		},
		Target: interceptor.Target{
			To: "foldgate", Method: m.Method, Params: m.Params, Forward: stripOurMeta(m.Params),
			Extra: m.Extra, Header: forwardHeader(fl.ex.Header),
		},
		Attribution: interceptor.Attribution{Implicit: g.cfg.Attribution.Implicit == "legacy" && (!fl.modern || s.Transport == "stdio")},
	}
	if k := rawjson.KindOf(m.Params); m.Params != nil && k != rawjson.Object {
		return c, &wire.Error{Code: wire.CodeInvalidParams, Message: "params must be an object"}
	}
	meta, twice := decisive(m)
	if twice != nil {
		return c, twice
	}
	if id, ok := rawjson.GetString(meta, metaBranchID); ok && id != "" {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceMeta
	} else if fl.ex.BranchID != "" {
		c.Attribution.BranchID, c.Attribution.Source = fl.ex.BranchID, interceptor.SourceURL
	}
	c.Origin.Thread, c.Origin.Spawned = hostThread(meta)
	c.Origin.Traceparent, _ = rawjson.GetString(meta, "traceparent")
	if err := g.correlate(c, meta); err != nil {
		return c, &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("_meta[%q]: %v", metaCorrelation, err)}
	}
	if err := g.subContext(c, meta); err != nil {
		return c, &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("_meta[%q]: %v", metaContext, err)}
	}
	return c, nil
}

// decides are the members of params that say what a request is, by method; those
// that are not here are decided by their _meta alone.
var decides = map[string][]string{
	"tools/call": {"_meta", "name", "arguments"}, "prompts/get": {"_meta", "name", "arguments"},
	"resources/read": {"_meta", "uri"}, "resources/subscribe": {"_meta", "uri"}, "resources/unsubscribe": {"_meta", "uri"},
	"completion/complete": {"_meta", "ref"},
	"tasks/get":           {"_meta", "taskId"}, "tasks/result": {"_meta", "taskId"}, "tasks/update": {"_meta", "taskId"}, "tasks/cancel": {"_meta", "taskId"},
}

var metaDecides = []string{"_meta"}

// decisive returns params._meta. It refuses params in which a member that decides
// what the request is comes twice or in another spelling: of two, servers take the
// first or the last, and those in Go also "Name" for "name", so that a server
// could do what foldgate neither allowed nor recorded.
func decisive(m wire.Message) (meta []byte, err error) {
	names := decides[m.Method]
	if names == nil {
		names = metaDecides
	}
	var seen [3]bool
	rawjson.Members(m.Params, func(f rawjson.Member) bool {
		for i, name := range names {
			if f.Is(name) && !seen[i] {
				seen[i] = true
				if i == 0 {
					meta = f.Value
				}
				return true
			}
		}
		own := f.Name()
		for _, name := range names {
			if strings.EqualFold(own, name) {
				err = &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("params has %q twice or in two spellings (%q): servers differ in which they read", name, own)}
				return false
			}
		}
		return true
	})
	return meta, err
}

// speaks returns the revision of the host in this request.
func (s *session) speaks(fl *inbound) string {
	if v, ok := rawjson.GetString(fl.ex.Msg.Params, "_meta", wire.MetaProtocolVersion); ok && fl.modern {
		return v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

func (fl *inbound) setCall(c *interceptor.Call) {
	fl.s.mu.Lock()
	fl.call = c
	fl.s.mu.Unlock()
}

// getCall returns what the chain knows of the flight; nil before it is known.
func (fl *inbound) getCall() *interceptor.Call {
	fl.s.mu.Lock()
	defer fl.s.mu.Unlock()
	return fl.call
}

// stripOurMeta returns params without the _meta keys that are foldgate's own.
func stripOurMeta(params json.RawMessage) json.RawMessage {
	meta, ok := rawjson.Get(params, "_meta")
	if !ok || !bytes.Contains(meta, []byte(metaPrefix)) && bytes.IndexByte(meta, '\\') < 0 { // a key may be spelled with escapes
		return params
	}
	return dropMeta(params, func(key string) bool { return strings.HasPrefix(key, metaPrefix) })
}

// stripReserved returns params without the protocol's per-hop _meta keys, for
// an upstream of the legacy era.
func stripReserved(params json.RawMessage) json.RawMessage {
	return dropMeta(params, func(key string) bool {
		switch key {
		case wire.MetaProtocolVersion, wire.MetaClientInfo, wire.MetaClientCapabilities, wire.MetaLogLevel:
			return true
		}
		return false
	})
}

// dropMeta removes the members of params._meta for which drop holds, and
// _meta itself if nothing else was in it.
func dropMeta(params json.RawMessage, drop func(string) bool) json.RawMessage {
	meta, ok := rawjson.Get(params, "_meta")
	if !ok {
		return params
	}
	kept := rawjson.DeleteFunc(meta, func(m rawjson.Member) bool { return drop(m.Name()) })
	switch {
	case len(kept) == len(meta):
		return params
	case string(kept) == "{}":
		return rawjson.Delete(params, "_meta")
	}
	return rawjson.Set(params, kept, "_meta")
}
