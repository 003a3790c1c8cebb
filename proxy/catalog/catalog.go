// Package catalog merges the lists of all servers into the lists that hosts see: tools, prompts,
// resources and resource templates. Everything here is a pure function of lists and configuration.
// Package router fetches the lists and decides when to merge them again.
package catalog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/policy"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Kind is one of the lists of MCP.
type Kind int

// The lists of MCP. Kinds is their number.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
	Kinds
)

// kinds has, for each list, its method, the member with the items, the member that names an item,
// the capability that offers it, and another member that each item has by the protocol, "" for none.
var kinds = [Kinds]struct{ method, items, id, capability, needs string }{
	Tools:     {"tools/list", "tools", "name", "tools", "inputSchema"},
	Prompts:   {"prompts/list", "prompts", "name", "prompts", ""},
	Resources: {"resources/list", "resources", "uri", "resources", "name"},
	Templates: {"resources/templates/list", "resourceTemplates", "uriTemplate", "resources", "name"},
}

// Method returns the method that reads the list.
func (k Kind) Method() string { return kinds[k].method }

// Capability returns the name of the server capability that offers the list.
func (k Kind) Capability() string { return kinds[k].capability }

// Changed returns the method of the notification that announces a change.
func (k Kind) Changed() string { return wire.ListChanged(k.Capability()) }

// KindOf returns the list that a method reads; ok is false for other methods.
func KindOf(method string) (k Kind, ok bool) {
	for k < Kinds && kinds[k].method != method {
		k++
	}
	return k, k < Kinds
}

// ChangedKinds returns the lists that a list_changed notification is about, nil for other methods.
func ChangedKinds(method string) (changed []Kind) {
	for k := range Kinds {
		if k.Changed() == method {
			changed = append(changed, k)
		}
	}
	return changed
}

// List is one complete list of one server. It is not changed once it is read.
type List struct {
	Items  []json.RawMessage // as the server wrote them, without secrets
	Rest   []rawjson.Member  // the members of the result beside the items and the cursor
	Record string            // the id of the trace record of the response
	Held   map[string]string // names of items whose definition hosts must not see, with its state
	Cut    bool              // the server has more items than [MaxItems]
	// Connection is the number of the connection over which it was read, 0 if an earlier process read it.
	Connection uint64
}

// modern reports whether the server speaks the modern era, whose results all have a type. l may be nil.
func (l *List) modern() bool {
	return l != nil && slices.ContainsFunc(l.Rest, func(m rawjson.Member) bool { return m.Is("resultType") })
}

// MaxItems bounds a list: of tiny items, each takes far more memory than its bytes.
const MaxItems = 100_000

// AddPage adds one page of a list result, up to [MaxItems], and returns the cursor of the next page, "" for none.
func (l *List) AddPage(page []byte, k Kind) (cursor string) {
	first := l.Rest == nil
	for m := range rawjson.Members(page) {
		switch {
		case m.Is(kinds[k].items):
			for v := range rawjson.Elements(m.Value) {
				if l.Cut = len(l.Items) == MaxItems; l.Cut {
					break
				}
				l.Items = append(l.Items, v)
			}
		case m.Is("nextCursor"):
			cursor = rawjson.Unquote(m.Value)
		case first:
			l.Rest = append(l.Rest, m)
		}
	}
	if l.Rest == nil {
		l.Rest = []rawjson.Member{}
	}
	return cursor
}

// has reports whether an item of the list, which may be nil, has a name.
func (l *List) has(k Kind, name string) bool {
	return l != nil && slices.ContainsFunc(l.Items, func(raw json.RawMessage) bool {
		own, _ := rawjson.GetString(raw, kinds[k].id)
		return own == name
	})
}

// Page returns the list as one page, compact, for [List.AddPage].
func (l *List) Page(k Kind) json.RawMessage {
	page := append(append([]byte{'{'}, rawjson.Quote(kinds[k].items)...), ":["...)
	for i, item := range l.Items {
		if i > 0 {
			page = append(page, ',')
		}
		page = append(page, item...)
	}
	page = append(page, ']')
	for _, m := range l.Rest {
		page = append(append(append(append(page, ','), m.Key...), ':'), m.Value...)
	}
	return rawjson.Compact(append(page, '}'))
}

// Rules are the configuration's rules for lists. They are safe for concurrent use.
type Rules struct {
	cfg       config.Config
	keys      []string // of the servers, in the configuration's order
	own       []json.RawMessage
	workflows *workflow.Rules // nil without workflows
	policy    *policy.Policy  // nil if it forbids nothing
}

// NewRules returns the rules of a valid configuration. own are the definitions of foldgate's own
// tools.
func NewRules(cfg config.Config, own []json.RawMessage) *Rules {
	r := &Rules{cfg: cfg, keys: cfg.UpstreamKeys(), own: own}
	if len(cfg.Workflows) > 0 {
		r.workflows, _ = cfg.WorkflowRules() // Validate has checked them
	}
	r.policy, _ = policy.Compile(cfg.Policy) // as well
	return r
}

// Entry says which server owns a listed name, and how a call of it changes on its way.
type Entry struct {
	Server string // the key of the owner, "" for foldgate's own tools
	Name   string // the name, URI or URI template as the server knows it
	// TakesBranchID means that foldgate added branch_id to the tool's schema. TakeBranchID removes
	// it from the arguments again.
	TakesBranchID bool
	Headers       []Header        // the arguments of a tool that also travel as HTTP headers
	Workflow      *Workflow       // the tool's part in a workflow, nil if no rule names it
	Shown         json.RawMessage // the item as hosts see it
	Raw           json.RawMessage // the item as the server wrote it
	Held          string          // why hosts do not see it and must not call it, a state of package pins; "" if they may
}

// Clash is a name that two servers offer. Hosts can reach only the first.
type Clash struct {
	Name          string // as hosts would see it
	First, Second string // the keys of the servers; First may be "foldgate"
}

// Omitted is an item of a server's list that hosts do not see, because the protocol does not allow it: a
// typed host would refuse the whole list, with the items of all servers.
type Omitted struct {
	Server, Name string // the key of the server, and its own name for the item; "" if it has none
	Why          string
}

// Catalog is one merged list as hosts see it. It is not changed once it is made.
type Catalog struct {
	Rules   *Rules   // by which it was made
	Order   []string // the shown names in the order of the list
	Clashes []Clash
	Omitted []Omitted
	// Lists are the lists that it was merged from, in the configuration's order; nil for a server
	// that is missing.
	Lists []*List

	kind           Kind
	entries        map[string]Entry
	legacy, modern json.RawMessage

	mu    sync.Mutex
	sees  map[string][sha256.Size]byte   // by caller, a hash of what the caller sees
	parts map[[sha256.Size]byte]*Catalog // by that hash

	listing [2]sync.Once // for hosts that do not search, and for those that do
	listed  [2]*Catalog

	indexed, counted sync.Once
	index            *index // made by the first search
	tokens           int    // set by the first Tokens
}

// Lookup returns the owner of a shown name.
func (c *Catalog) Lookup(name string) (Entry, bool) {
	e, ok := c.entries[name]
	return e, ok
}

// Result returns the catalog as a list result. Modern results have a type, a time to live and a
// cache scope.
func (c *Catalog) Result(modern bool) json.RawMessage {
	if modern {
		return c.modern
	}
	return c.legacy
}

// Servers returns the keys of the servers in the order of lists.
func (r *Rules) Servers() []string { return r.keys }

// Merge puts the lists of all servers together, in the configuration's order. The first server
// keeps a name that several offer. lists has one element for each of Servers, nil if that server is
// missing.
func (r *Rules) Merge(k Kind, lists []*List) *Catalog {
	c := &Catalog{Rules: r, kind: k, entries: map[string]Entry{}, Lists: lists}
	add := func(shown string, e Entry) {
		if c.entries[shown] = e; e.Held == "" {
			c.Order = append(c.Order, shown)
		}
	}
	if k == Tools {
		for _, definition := range r.own {
			name, _ := rawjson.GetString(definition, "name")
			add(name, Entry{Name: name, Raw: definition, Shown: definition})
		}
	}
	for i, l := range lists {
		if l == nil {
			continue
		}
		for _, raw := range l.Items {
			shown, e, fault, ok := r.Entry(k, r.keys[i], l, raw)
			if fault != "" {
				name, _ := rawjson.GetString(raw, kinds[k].id)
				c.Omitted = append(c.Omitted, Omitted{r.keys[i], name, fault})
			}
			if !ok {
				continue
			}
			e.Held = l.Held[e.Name]
			if first, taken := c.entries[shown]; taken {
				c.Clashes = append(c.Clashes, Clash{Name: shown, First: cmp.Or(first.Server, "foldgate"), Second: r.keys[i]})
				continue
			}
			add(shown, e)
		}
	}
	c.render(r.cfg.Authenticates())
	return c
}

// Entry returns the entry of one item of a server's list l, and the name under which hosts see it. ok is false for an item
// that is not shown, because the configuration hides it, because the server is no longer configured, or
// because of a fault: the protocol does not allow it.
func (r *Rules) Entry(k Kind, server string, l *List, raw json.RawMessage) (shown string, e Entry, fault string, ok bool) {
	own, named := rawjson.GetString(raw, kinds[k].id)
	u := r.cfg.Upstreams[server] // a reload may remove one while its list is on the way
	if u == nil || k == Tools && named && !u.Tools.Selects(own) {
		return "", Entry{}, "", false
	}
	fits, fault := fit(k, raw)
	var headers []Header
	if fault == "" && k == Tools {
		schema, _ := rawjson.Get(raw, "inputSchema")
		headers, fault = headersOf(schema)
		if !l.modern() || u.URL == "" { // headers are of HTTP only
			fault = ""
		}
	}
	if fault != "" {
		return "", Entry{}, fault, false
	}
	e = Entry{Server: server, Name: own, Headers: headers, Raw: raw, Shown: fits}
	shown = own
	if k == Tools || k == Prompts {
		if shown = r.cfg.ShownName(server, own); shown != own {
			e.Shown = rawjson.Set(e.Shown, rawjson.Quote(shown), "name")
		}
	}
	if k == Tools {
		e.Shown, e.TakesBranchID = addBranchID(e.Shown)
		e.Shown, e.Workflow = r.addWorkflow(e.Shown, server, own)
		if !r.cfg.Results.Rule(shown).Off { // a folded result has no structured content, and some hosts insist on it
			e.Shown = rawjson.Delete(e.Shown, "outputSchema")
		}
	}
	return shown, e, "", true
}

// Unlisted returns the entry of a tool of a server that has no list yet, by the prefix of its name.
// known reports whether a server's list was read.
func (r *Rules) Unlisted(shown string, known func(server string) bool) (Entry, bool) {
	for _, key := range r.keys {
		prefix := r.prefix(key)
		own, ok := strings.CutPrefix(shown, prefix+"__")
		if ok && prefix != "" && !known(key) && r.shows(key, own) {
			_, w := r.addWorkflow(nil, key, own)
			return Entry{Server: key, Name: own, TakesBranchID: true, Workflow: w}, true
		}
	}
	return Entry{}, false
}

// shows reports whether the configuration shows a tool of a server in keys, by the name that the server gives it.
func (r *Rules) shows(server, tool string) bool { return r.cfg.Upstreams[server].Tools.Selects(tool) }

// Hidden returns the server, and its own name, of a tool that the configuration does not show. The longest
// prefix that fits decides. If none fits, it is a tool of a server without a prefix only if that server lists
// it. list returns the list of a server, nil if it has none.
func (r *Rules) Hidden(shown string, list func(server string) *List) (server, own string, ok bool) {
	if server, own, ok = r.cfg.ByPrefix(shown); ok {
		return server, own, !r.shows(server, own)
	}
	for _, key := range r.keys {
		if r.prefix(key) == "" && !r.shows(key, shown) && list(key).has(Tools, shown) {
			return key, shown, true
		}
	}
	return "", "", false
}

// OnlyOwner returns the server that shown belongs to by its prefix. ok is false if there are
// several or none.
func (r *Rules) OnlyOwner(shown string) (server string, ok bool) {
	for _, key := range r.keys {
		prefix := r.prefix(key)
		if prefix != "" && !strings.HasPrefix(shown, prefix+"__") {
			continue
		}
		if ok || prefix == "" {
			return "", false
		}
		server, ok = key, true
	}
	return server, ok
}

func (r *Rules) prefix(server string) string { return r.cfg.Upstreams[server].NamePrefix(server) }

// render writes the list result in the forms of both eras. private means that no other principal
// may see the list.
func (c *Catalog) render(private bool) {
	items := make([][]byte, len(c.Order))
	for i, shown := range c.Order {
		items[i] = c.entries[shown].Shown
	}
	out := append([]byte(`{"`+kinds[c.kind].items+`":[`), bytes.Join(items, []byte(","))...)
	out = append(out, ']')
	scope, ttl := "public", -1
	if private {
		scope = "private"
	}
	for _, l := range c.Lists {
		if l == nil {
			ttl = 0 // a server is missing: ask again
			continue
		}
		own := 0
		for _, m := range l.Rest {
			switch m.Name() {
			case "cacheScope":
				if rawjson.Unquote(m.Value) == "private" {
					scope = "private"
				}
			case "ttlMs":
				own, _ = strconv.Atoi(string(m.Value))
			case "resultType":
			default:
				if len(c.Lists) == 1 { // the only server's own members pass
					out = append(append(append(append(out, ','), m.Key...), ':'), m.Value...)
				}
			}
		}
		if ttl < 0 || own < ttl {
			ttl = own
		}
	}
	c.legacy = append(bytes.Clone(out), '}')
	c.modern = fmt.Appendf(out, `,"resultType":"complete","ttlMs":%d,"cacheScope":%q}`, max(ttl, 0), scope)
}

// Template returns the first resource template that a URI can come from.
func (c *Catalog) Template(uri string) (Entry, bool) {
	for _, shown := range c.Order {
		if e := c.entries[shown]; templateFits(e.Name, uri) {
			return e, true
		}
	}
	return Entry{}, false
}

// templateFits reports whether a URI can come from an RFC 6570 template: the literal parts occur in
// order, the first at the start and the last at the end.
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
