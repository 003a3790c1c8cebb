package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// legacyVersions are the revisions that foldgate agrees to in initialize.
var legacyVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18", wire.VersionLegacy}

// answerInitialize serves initialize: what foldgate and the upstreams together
// can do. Upstreams whose answer is known from before are not started for it.
func (g *Gateway) answerInitialize(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	s := fl.s
	s.mu.Lock()
	if s.initialize != nil {
		s.mu.Unlock()
		return nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "initialize was already called on this connection"}
	}
	s.initialize = bytes.Clone(c.Target.Forward)
	s.own.Initialize(s.initialize)
	s.revision = wire.VersionLegacy
	if v, ok := rawjson.GetString(c.Target.Params, "protocolVersion"); ok && slices.Contains(legacyVersions, v) {
		s.revision = v
	}
	if name, ok := rawjson.GetString(c.Target.Params, "clientInfo", "name"); ok && name != "" {
		s.client = name
	}
	revision := s.revision
	s.mu.Unlock()
	g.acquaint(ctx, s, false)
	out := append([]byte(`{"protocolVersion":`), rawjson.Quote(revision)...)
	out = append(append(out, `,"capabilities":`...), g.capabilities(false)...)
	out = append(append(out, `,"serverInfo":`...), serverInfo()...)
	out = append(append(out, `,"instructions":`...), rawjson.Quote(g.instructions())...)
	return &interceptor.Result{Body: append(out, '}')}, nil
}

// answerDiscover serves server/discover of the modern era.
func (g *Gateway) answerDiscover(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	g.acquaint(ctx, fl.s, true)
	scope := "public"
	if len(g.cfg.Principals) > 0 { // what somebody may see who has a token
		scope = "private"
	}
	out := append([]byte(`{"resultType":"complete","supportedVersions":`), rawjson.Marshal(wire.Versions)...)
	out = append(append(out, `,"capabilities":`...), g.capabilities(true)...)
	out = append(append(out, `,"instructions":`...), rawjson.Quote(g.instructions())...)
	out = append(append(out, `,"ttlMs":0,"cacheScope":"`+scope+`","_meta":{"`+wire.MetaServerInfo+`":`...), serverInfo()...)
	return &interceptor.Result{Body: append(out, '}', '}')}, nil
}

// helloWait bounds how long a first initialize waits for upstreams that
// foldgate has never met.
const helloWait = 5 * time.Second

// acquaint makes sure that foldgate knows what each upstream offers, starting
// only those that it has never met under their present configuration.
func (g *Gateway) acquaint(ctx context.Context, s *session, modern bool) {
	ctx, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	var wg sync.WaitGroup
	for _, u := range g.ups {
		if _, known := u.Info(); known {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := u.Connection(ctx, s.scope(modern || s.Transport != "stdio")); err != nil {
				s.tenant(u).setLate()
			}
		}()
	}
	wg.Wait()
}

// serverInfo is how foldgate introduces itself to hosts.
func serverInfo() []byte {
	return rawjson.Marshal(map[string]string{"name": "foldgate", "title": "foldgate", "version": version.String()})
}

// perHop are capabilities that foldgate states itself.
var perHop = []string{"tools", "prompts", "resources", "logging", "completions"}

// capabilities returns the union of what the upstreams offer. Lists can always
// change, since an upstream may come and go.
func (g *Gateway) capabilities(modern bool) []byte {
	out := []byte(`{"tools":{"listChanged":true}}`)
	add := func(name, value string) { out = rawjson.Set(out, []byte(value), name) }
	has := func(name string) bool {
		return slices.ContainsFunc(g.ups, func(u *upstream.Server) bool { return u.Capability(name) != nil })
	}
	if has("prompts") {
		add("prompts", `{"listChanged":true}`)
	}
	if has("resources") {
		value := `{"listChanged":true}`
		if slices.ContainsFunc(g.ups, func(u *upstream.Server) bool {
			v, _ := rawjson.Get(u.Capability("resources"), "subscribe")
			return string(v) == "true"
		}) {
			value = `{"subscribe":true,"listChanged":true}`
		}
		add("resources", value)
	}
	for _, name := range []string{"logging", "completions"} {
		if has(name) {
			add(name, `{}`)
		}
	}
	for _, u := range g.ups {
		said, _ := u.Info()
		caps, _ := rawjson.Get(said.Result, "capabilities")
		rawjson.Members(caps, func(m rawjson.Member) bool {
			if name := m.Name(); !slices.Contains(perHop, name) {
				out = mergeMember(out, name, m.Value)
			}
			return true
		})
	}
	return out
}

// mergeMember adds value under name; of two objects it keeps the members of
// both, the first's where they clash.
func mergeMember(obj []byte, name string, value []byte) []byte {
	have, ok := rawjson.Get(obj, name)
	if !ok {
		return rawjson.Set(obj, value, name)
	}
	if rawjson.KindOf(have) == rawjson.Object && rawjson.KindOf(value) == rawjson.Object {
		rawjson.Members(value, func(m rawjson.Member) bool {
			if _, taken := rawjson.Get(have, m.Name()); !taken {
				have = rawjson.Set(have, m.Value, m.Name())
			}
			return true
		})
		return rawjson.Set(obj, have, name)
	}
	return obj
}

// instructions tell the model when to branch, then what each upstream says of
// itself under its name.
func (g *Gateway) instructions() string {
	text := ownInstructions
	for _, u := range g.ups {
		said, _ := u.Info()
		own, _ := rawjson.GetString(said.Result, "instructions")
		if own == "" {
			continue
		}
		m := interceptor.Message{Server: u.Key, Text: own, Always: true}
		if g.boundary.Inbound(g.ctx, &m); m.Verdict != interceptor.Withheld {
			text += "\n\n# " + u.Key + "\n" + m.Text
		}
	}
	return text
}

// answerList serves the lists.
func (g *Gateway) answerList(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	for k := range listKinds {
		if kinds[k].method != c.Target.Method {
			continue
		}
		if cursor, ok := rawjson.GetString(c.Target.Params, "cursor"); ok {
			return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "cursor " + cursor + " is not foldgate's: its lists have one page"}
		}
		m := g.menu(ctx, fl.s, k, fl.modern, []string{c.Outcome.Record})
		for key := range m.missing {
			fl.s.tenant(g.byKey[key]).setLate()
		}
		c.Outcome.Clean, c.Outcome.Open = true, g.cfg.LetsSecretsThrough() // each listing was scrubbed when it was fetched
		for _, l := range m.from {
			if l != nil && l.record != "" {
				c.Origin.Correlates = append(c.Origin.Correlates, l.record)
			}
		}
		if fl.modern {
			return &interceptor.Result{Body: m.modern}, nil
		}
		return &interceptor.Result{Body: m.legacy}, nil
	}
	return nil, &wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + c.Target.Method}
}

// setLevel serves logging/setLevel: it is for every upstream that the session
// uses, and for those it will use later.
func (g *Gateway) setLevel(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	if level, _ := rawjson.GetString(c.Target.Forward, "level"); !slices.Contains(logLevels, level) { // it would go into every later request
		return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("invalid log level %q: use %s", clipText(level, 64), strings.Join(logLevels, ", "))}
	}
	s := fl.s
	s.mu.Lock()
	s.logLevel = bytes.Clone(c.Target.Forward)
	s.mu.Unlock()
	for _, u := range g.ups {
		if u.Capability("logging") == nil {
			continue
		}
		if _, err := u.Connection(ctx, s.scope(fl.modern)); err != nil {
			continue // told again when it comes up
		}
		l := u.Live(s.scope(false))
		if l == nil || l.Info().Modern() {
			continue
		}
		m, err := l.Call(ctx, &conn.Request{Method: c.Target.Method, Params: c.Target.Forward})
		if err == nil && m.Error != nil {
			return resultOf(m), nil
		}
	}
	return &interceptor.Result{Body: json.RawMessage(`{}`)}, nil
}
