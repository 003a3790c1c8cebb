package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/pins"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// pinned are the lists whose items are pinned.
var pinned = map[catalog.Kind]pins.Kind{catalog.Tools: pins.Tool, catalog.Prompts: pins.Prompt}

// supply is what a server gives to the hosts of a group: its lists and its instructions.
type supply struct {
	rt    *Router
	srv   *upstream.Server
	group upstream.Group
}

// pin returns a copy of a list with Held set. live means that the server has just sent the list, so its new
// definitions are stored, with names that show no secret, also if the policy lets these pass.
func (s supply) pin(ctx context.Context, k catalog.Kind, l *catalog.List, live bool) *catalog.List {
	kind, ok := pinned[k]
	if !ok || l == nil {
		return l
	}
	all, names := make([]pins.Definition, 0, len(l.Items)), map[string]string{}
	for _, raw := range l.Items {
		if d := pins.Define(kind, raw); d.Name != "" {
			names[d.Name] = s.rt.pinName(d.Name)
			d.Name = names[d.Name]
			all = append(all, d)
		}
	}
	kept := *l
	kept.Held = nil
	held := s.held(ctx, kind, all, live)
	for name, word := range names {
		if state := held[word]; state != "" {
			if kept.Held == nil {
				kept.Held = map[string]string{}
			}
			kept.Held[name] = state
		}
	}
	return &kept
}

// pinName returns the name of a definition as pins keep it: without secrets, and another one for each name.
func (rt *Router) pinName(name string) string {
	if !rt.Recorder.Secret(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return rt.Recorder.Short(name) + "#" + hex.EncodeToString(sum[:4])
}

// held returns the names of the definitions that hosts must not see, with their states, and tells the
// operator of all that are new or changed.
func (s supply) held(ctx context.Context, kind pins.Kind, all []pins.Definition, live bool) map[string]string {
	mode := s.rt.Settings().Config.PinMode(s.srv.Key)
	if mode == "off" || s.srv.Builtin() {
		return nil
	}
	found, events, err := s.rt.Pins.Look(ctx, s.source(), kind, all, live)
	if err != nil {
		s.srv.Log.Error("definitions can't be compared with those of before", "kind", kind, "held", mode == "hold", "err", err)
	}
	for i, e := range events {
		s.rt.definition(e, mode == "hold", i < maxWarned)
	}
	if more := len(events) - maxWarned; more > 0 {
		s.srv.Log.Warn("more definitions are not as they were approved", "kind", kind, "definitions", more, "show", "foldgate pins diff "+s.srv.Key)
	}
	if mode != "hold" || len(found) == 0 {
		return nil
	}
	out := map[string]string{}
	for name, state := range found {
		if err != nil {
			state = pins.Unknown
		}
		out[name] = string(state)
	}
	return out
}

// source names the supply in the store of pins.
func (s supply) source() pins.Source {
	short := func(parts ...any) string {
		sum := sha256.Sum256(rawjson.Marshal(parts))
		return hex.EncodeToString(sum[:8])
	}
	return pins.Source{Server: s.srv.Key, Reach: short(s.srv.Config.Command, s.srv.Config.URL), Audience: short(s.group.Principal, s.group.Capabilities.String())}
}

// judge notes on the entry of a tool or prompt that no list has whether its definition is held.
func (s *Session) judge(st *Settings, k catalog.Kind, e *catalog.Entry) {
	if srv := st.Server(e.Server); srv != nil && !srv.Builtin() && st.Config.PinMode(e.Server) == "hold" {
		if state := s.rt.Pins.State(supply{s.rt, srv, s.scope.Group}.source(), pinned[k], s.rt.pinName(e.Name)); state != pins.Approved {
			e.Held = string(state)
		}
	}
}

// definition tells the operator of a definition, in the log only if logged is true. held means that hosts
// do not get it.
func (rt *Router) definition(e pins.Event, held, logged bool) {
	log, held := rt.Log.With("upstream", e.Server, "kind", e.Kind, "name", e.Name), held && e.State != pins.Approved
	show := "foldgate pins diff " + e.Server
	switch {
	case !logged:
	case e.By != "":
		log.Info("a definition was approved", "by", e.By)
	case e.State == pins.Approved:
		log.Warn("a definition looks wrong", "warnings", e.Warnings, "show", show)
	default:
		log.Warn("a definition is not as it was approved", "state", e.State, "held", held, "warnings", e.Warnings, "show", show)
	}
	rt.Recorder.Definition(e.Server, string(e.Kind), e.Name, string(e.State), held, e)
	rt.Telemetry.Definition(e.Server, string(e.State), held)
}

// Repin judges all lists again, after a reload or an approval, and tells hosts of those that differ.
// events are the approvals.
func (rt *Router) Repin(events []pins.Event) {
	for _, e := range events {
		rt.definition(e, false, true)
	}
	for _, c := range rt.caches() {
		for k := range pinned {
			if c.replace(k, func(l *catalog.List) *catalog.List {
				if now := c.pin(rt.lifetime, k, l, false); !maps.Equal(now.Held, l.Held) {
					return now
				}
				return l
			}) {
				c.changed(k)
			}
		}
	}
}

// instructions returns the server's instructions, by what it says of itself, as hosts may read them; "" if they must not. live
// is as for pin.
func (s supply) instructions(ctx context.Context, info conn.Info, live bool) string {
	own, _ := rawjson.GetString(info.Result, "instructions")
	msg := interceptor.Message{Text: own, Always: true}
	if own != "" {
		if s.rt.Boundary.ToHost(ctx, &msg); msg.Verdict == interceptor.Withheld {
			return ""
		}
	}
	var all []pins.Definition
	if msg.Text != "" {
		all = append(all, pins.Define(pins.Instructions, rawjson.Marshal(map[string]string{"instructions": msg.Text})))
	}
	if s.held(ctx, pins.Instructions, all, live) != nil {
		return ""
	}
	return msg.Text
}

// checkDefinition refuses a call of a tool or a prompt whose definition is held. It compares the list of the
// connection that the call goes over, and reads it before the first call: the server may be another one than when a
// host last asked for the list.
func (r *request) checkDefinition(ctx context.Context, c *interceptor.Call, srv *upstream.Server) error {
	k, ok := map[string]catalog.Kind{"tools/call": catalog.Tools, "prompts/get": catalog.Prompts}[c.Target.Method]
	if !ok || srv.Builtin() || r.s.rt.Settings().Config.PinMode(srv.Key) != "hold" {
		return nil
	}
	l, err := r.s.listOver(ctx, srv, k)
	if err != nil {
		return unavailable(ctx, srv, fmt.Errorf("the definitions of upstream %s can't be compared with those that were approved (pins: hold): %w", srv.Key, err))
	}
	name, _ := rawjson.GetString(c.Target.Forward, "name")
	e := catalog.Entry{Server: srv.Key, Name: name, Held: l.Held[name]}
	if e.Held == "" {
		r.s.judge(r.s.rt.Settings(), k, &e)
	}
	if e.Held != "" && l.Held[name] == "" && slices.ContainsFunc(l.Items, func(item json.RawMessage) bool {
		listed, _ := rawjson.GetString(item, "name")
		return listed == name
	}) {
		e.Held = "" // what waits for an approval is the definition of another connection
	}
	return withheld(k, e)
}

// listOver returns a list of a server that was read over the session's own connection to it, or over the one that the
// session shares. It reads the list if the last one is from another connection.
func (s *Session) listOver(ctx context.Context, srv *upstream.Server, k catalog.Kind) (l *catalog.List, err error) {
	const attempts = 3 // a list that is being read may be from a connection that has just ended
	for range attempts {
		number := srv.State(s.scope).Number
		c := s.cacheOf(srv)
		if l = c.fresh(k); l != nil && l.Connection == number {
			return l, nil
		}
		if own := s.ownCache(srv); own != nil {
			c = own
		}
		c.replace(k, func(l *catalog.List) *catalog.List {
			if l.Connection == number {
				return l
			}
			return nil
		})
		if l, err = s.list(ctx, listWait, srv, k, nil); err != nil || l.Connection == number {
			return l, err
		}
	}
	return nil, errors.New("its connections end again and again")
}

// withheld returns the refusal of a call of something whose definition is held, nil if it is not.
func withheld(k catalog.Kind, e catalog.Entry) error {
	if e.Held == "" {
		return nil
	}
	why := "is new since foldgate first asked the server"
	switch e.Held {
	case string(pins.Changed):
		why = "has changed since it was approved"
	case string(pins.Unknown):
		return &interceptor.Refusal{Reason: trace.ReasonPolicy, Code: "definition_unknown", Status: 403, Message: fmt.Sprintf(
			"foldgate can't read or write its file of approved definitions, so it withholds the %s %s of upstream %s (pins: hold). Ask the operator: foldgate's log says what is wrong with pins.json in the state directory",
			pinned[k], e.Name, e.Server)}
	}
	argument := e.Name
	if argument == string(pins.Instructions) {
		argument = e.Server + "__" + argument // the bare word is the text of the server
	}
	if strings.ContainsFunc(argument, func(c rune) bool {
		return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_-./", c)
	}) {
		argument = "NAME" // the server chose it, and a shell may read more into it
	}
	return &interceptor.Refusal{Reason: trace.ReasonPolicy, Code: "definition_" + e.Held, Status: 403, Message: fmt.Sprintf(
		"the definition of the %s %s of upstream %s %s, so foldgate withholds it (pins: hold). Ask the operator to look at it: `foldgate pins diff %[3]s %[5]s` shows what is different, `foldgate pins approve %[3]s %[5]s` approves it",
		pinned[k], e.Name, e.Server, why, argument)}
}
