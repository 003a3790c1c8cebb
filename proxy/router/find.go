package router

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
)

// searchers are the client names of hosts with a search for tools of their own: a model reads only the
// definitions that it finds. The protocol has no capability for it.
var searchers = []string{"claude-code", "codex-mcp-client"}

// What tools.mode: auto decided.
const (
	undecided int32 = iota
	decidedList
	decidedSearch
)

// choice returns what tools.mode decided for the session.
func (s *Session) choice() int32 {
	switch mode := s.rt.Settings().Config.Tools.Mode; {
	case mode == config.ModeSearch:
		return decidedSearch
	case mode == config.ModeList || slices.Contains(searchers, s.clientName()):
		return decidedList
	}
	return s.chosen.Load()
}

// searches reports whether the session's host finds tools by find_tools. tools.mode: auto decides by the
// first list and keeps to it, so that the list of a session does not change its kind. late means that the
// list of a server is missing, which may be of any size. A single request then searches, but the decision is
// not kept.
func (s *Session) searches(seen *catalog.Catalog, late bool) bool {
	if chosen := s.choice(); chosen != undecided {
		return chosen == decidedSearch
	}
	chosen := decidedList
	if late || seen.Listed(false).Tokens(s.rt.Tokens.Counter.CountBytes) > s.rt.Settings().Config.Tools.AutoTokens {
		chosen = decidedSearch
	}
	if late && s.SingleRequest {
		return true
	}
	s.chosen.CompareAndSwap(undecided, chosen)
	return s.chosen.Load() == decidedSearch
}

// ignores reports whether the host is not told of a change: the list of a host that searches stays as it is.
func (s *Session) ignores(method string) bool {
	return method == catalog.Tools.Changed() && s.choice() == decidedSearch
}

// unwrap turns a call_tool into the call that it stands for. Everything after it sees a plain tools/call.
func (r *request) unwrap() error {
	c := r.call
	name, arguments, branch, err := r.s.rt.Tools.Inner(c)
	if err != nil {
		return err
	}
	if branch != "" {
		c.Attribution.BranchID, c.Attribution.Source = branch, interceptor.SourceArgument
	}
	t := &c.Target
	t.Params = rawjson.Set(rawjson.Set(t.Params, rawjson.Quote(name), "name"), arguments, "arguments")
	t.Via, t.Name, t.Arguments, t.Forward, r.Msg.Params = t.Name, name, arguments, t.Params, t.Params
	return nil
}

// Limits of an answer of find_tools.
const (
	maxMore     = 10  // tools that are told without their definitions
	moreText    = 80  // characters of what such a tool does
	maxOthers   = 30  // further tools, of which only the names are told
	maxVague    = 100 // replaces maxOthers for a vague query
	suggestions = 3   // for an unknown name
)

// FindTools implements [tools.Requester]: it finds tools by words, or all of a server, among those that the
// caller sees. It returns what a model reads of the definitions of the first limit, and a note that names some
// more.
func (r *request) FindTools(ctx context.Context, query, server string, limit int) (definitions []json.RawMessage, note string, err error) {
	s, rt := r.s, r.s.rt
	merged, missing := s.Catalog(ctx, listWait, catalog.Tools, []string{r.call.Outcome.Record})
	seen := merged.For(r.call.Origin.Identity)
	servers, owners := []string{}, map[string]int{}
	for _, shown := range seen.Order {
		e, _ := seen.Lookup(shown)
		if owners[e.Server]++; owners[e.Server] == 1 && e.Server != "" {
			servers = append(servers, e.Server)
		}
	}
	for i, key := range servers {
		servers[i] = fmt.Sprintf("%s (%d)", key, owners[key])
	}
	if server != "" && owners[server] == 0 {
		return nil, "", folding.Errorf(folding.ErrInvalidInput, "server: there is no %s with tools; there are %s", rt.echo(server), strings.Join(servers, ", "))
	}
	found, fit, vague := seen.Search(query, server)
	best := min(limit, fit)
	told := min(best+maxMore, fit)
	for _, shown := range found[:best] {
		e, _ := seen.Lookup(shown)
		definitions = append(definitions, e.Readable())
	}
	more := ""
	for _, shown := range found[best:told] {
		e, _ := seen.Lookup(shown)
		description, _ := rawjson.GetString(e.Raw, "description")
		more += "\n" + shown + ": " + folding.Shorten(catalog.Lead(description), moreText)
	}
	others, most := found[told:], maxOthers
	if vague {
		most = maxVague
	}
	if len(others) > 0 {
		more += "\n" + strings.Join(others[:min(most, len(others))], " ")
	}
	switch {
	case fit == 0:
		note = "[no tool has these words; try others, or server alone]"
	case more == "":
		note = fmt.Sprintf("[tools that fit: %d]", fit)
	default:
		note = fmt.Sprintf("[tools that fit: %d. Others, without their schemas:]", fit)
	}
	note += more + "\n[servers, and their tools: " + strings.Join(servers, ", ") + "]"
	late := ""
	for _, srv := range rt.Settings().Servers {
		if missing[srv.Key] != nil && !s.conceals(srv, s.cacheOf(srv).peek) {
			late += " " + srv.Key
		}
	}
	if late != "" {
		note += "\n[not searched, because they give no list of their tools now:" + late + "]"
	}
	return definitions, note, nil
}

// similar returns a hint with the tools that a caller may mean by an unknown name, "" without any.
func (s *Session) similar(id interceptor.Identity, name string) string {
	rt := s.rt
	merged := s.group.merged[catalog.Tools].Load()
	if merged == nil || !rt.Settings().Config.Tools.Searchable() {
		return ""
	}
	seen := merged.For(id)
	name = rt.echo(name) // it may be long
	names, fit, _ := seen.Search(name, "")
	names = names[:fit]
	if near := config.Closest(name, seen.Order); near != "" {
		names = slices.Insert(slices.DeleteFunc(names, func(n string) bool { return n == near }), 0, near)
	}
	hint := "; find_tools finds tools by what they do"
	if len(names) > 0 {
		hint = "; did you mean " + strings.Join(names[:min(len(names), suggestions)], " or ") + "?" + hint[1:]
	}
	return hint
}
