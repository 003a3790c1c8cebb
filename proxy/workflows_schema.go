package proxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// injectFlow gives a tool that a rule names the parameter for the handle, and
// declares in its output schema what results will hold. It returns the tool as
// hosts see it, and its part in the workflow; nil where no rule names it.
func (g *Gateway) injectFlow(tool []byte, u *upstream.Server, own string) ([]byte, *flowEntry) {
	if g.flows == nil {
		return tool, nil
	}
	rule := g.flows.rules.Find(u.Key, own)
	if rule == nil {
		return tool, nil
	}
	inject := g.flows.inject[rule.Workflow()]
	e := &flowEntry{WorkflowStep: interceptor.WorkflowStep{Rule: rule, Opener: g.openerOf(rule), Output: interceptor.Output{Argument: inject.Argument}}}
	schema, _ := rawjson.Get(tool, "inputSchema")
	if _, has := rawjson.Get(schema, "properties", inject.Argument); has {
		e.owner = upstreams
		return tool, e
	}
	e.Output.Content = slices.Contains(inject.Result, "content")
	e.Output.Meta = slices.Contains(inject.Result, "_meta")
	e.owner = unknowns
	if extensible(schema) {
		e.owner = foldgates
		tool = rawjson.Set(tool, flowProperty(e.Opener, rule.TTL()), "inputSchema", "properties", inject.Argument)
	}
	output, ok := rawjson.Get(tool, "outputSchema")
	if !ok || !slices.Contains(inject.Result, "structuredContent") || !extensible(output) {
		return tool, e
	}
	key, declared := inject.Argument, []byte(`{"type":"string","description":"Handle of this workflow"}`)
	if _, taken := rawjson.Get(output, "properties", key); taken {
		declared = rawjson.Set([]byte(`{"type":"object","properties":{}}`), declared, "properties", key)
		key = "_context"
	}
	if _, taken := rawjson.Get(output, "properties", key); !taken {
		e.Output.Key = key
		tool = rawjson.Set(tool, declared, "outputSchema", "properties", key)
	}
	return tool, e
}

// unlistedFlow is the part of a tool whose schemas are not known, because its
// server is down: a handle is read, and left where it is.
func (g *Gateway) unlistedFlow(u *upstream.Server, own string) *flowEntry {
	_, e := g.injectFlow(nil, u, own)
	return e
}

// extensible reports whether an optional property can be added to a schema
// without a chance of changing what else it means.
func extensible(schema []byte) bool {
	if rawjson.KindOf(schema) != rawjson.Object {
		return false
	}
	fits, object := true, false
	rawjson.Members(schema, func(m rawjson.Member) bool {
		switch m.Name() {
		case "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "propertyNames", "maxProperties", "const", "enum":
			fits = false
		case "type":
			object = rawjson.Unquote(m.Value) == "object"
		case "properties":
			fits = fits && rawjson.KindOf(m.Value) == rawjson.Object
		}
		return fits
	})
	return fits && object
}

// flowProperty is the schema of the parameter. The guidance is here: results
// state facts only.
func flowProperty(opener string, ttl time.Duration) []byte {
	text := fmt.Sprintf("Handle returned by %s; pass the same value here to continue that workflow. Handles expire after %s without use.", opener, duration(ttl))
	return rawjson.Set([]byte(`{"type":"string"}`), rawjson.Quote(text), "description")
}

// duration is a ttl in words: whole days and hours where it is that.
func duration(d time.Duration) string {
	unit := func(n time.Duration, name string) string {
		if n == 1 {
			return "1 " + name
		}
		return fmt.Sprintf("%d %ss", n, name)
	}
	switch {
	case d%(24*time.Hour) == 0:
		return unit(d/(24*time.Hour), "day")
	case d%time.Hour == 0:
		return unit(d/time.Hour, "hour")
	case d%time.Minute == 0:
		return unit(d/time.Minute, "minute")
	}
	return d.String()
}

// openerOf is what hosts call the tools that start the rule's workflow.
func (g *Gateway) openerOf(rule *workflow.Rule) string {
	var names []string
	for _, o := range rule.Openers() {
		names = append(names, shownName(g.byKey[o.Server].Prefix, o.Tool))
	}
	return strings.Join(names, " or ")
}

// unmatched says which rules name a tool that hosts do not see, as far as the
// upstreams could be asked, and which tools can't take the handle.
func (g *Gateway) unmatched(m *menu) (faults []config.Fault) {
	if g.flows == nil {
		return nil
	}
	g.flows.rules.Each(func(spec int, r *workflow.Rule) {
		u := g.byKey[r.Server]
		if m.missing[r.Server] != nil {
			return
		}
		e, ok := m.entries[shownName(u.Prefix, r.Tool)]
		if !ok || e.up != u || e.flow == nil {
			key := fmt.Sprintf("workflows[%d].%s.tool", spec, r.At)
			faults = append(faults, config.Fault{Key: key, Msg: fmt.Sprintf("upstream %s shows no tool %q: correct the name, or allow the tool", r.Server, r.Tool)})
		}
	})
	return g.cfg.Locate(faults)
}
