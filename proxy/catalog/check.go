package catalog

import (
	"fmt"
	"maps"
	"slices"

	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// UnmatchedRules returns a fault for each workflow rule that names a tool which hosts do not see.
// It skips servers that are missing from tools.
func (r *Rules) UnmatchedRules(tools *Catalog) (faults []config.Fault) {
	if r.workflows == nil {
		return nil
	}
	r.workflows.Each(func(spec int, rule *workflow.Rule) {
		if tools.Lists[slices.Index(r.keys, rule.Server)] == nil {
			return
		}
		e, ok := tools.Lookup(r.cfg.ShownName(rule.Server, rule.Tool))
		if !ok || e.Server != rule.Server || e.Workflow == nil {
			faults = append(faults, config.Fault{
				Key: fmt.Sprintf("workflows[%d].%s.tool", spec, rule.At),
				Msg: fmt.Sprintf("upstream %s shows no tool %q: correct the name, or allow the tool", rule.Server, rule.Tool),
			})
		}
	})
	return r.cfg.Locate(faults)
}

// UnmatchedGlobs returns a fault for each glob on tool names, or name of a tool, that matches none. It may be meant for
// tools to come, but a mistyped deny hides nothing.
func (r *Rules) UnmatchedGlobs(tools *Catalog) (faults []config.Fault) {
	check := func(key string, all, names []string, why string) {
		for _, glob := range all {
			if !slices.ContainsFunc(names, func(name string) bool { return globs.Match(glob, name) }) {
				faults = append(faults, config.Fault{Key: key, Msg: fmt.Sprintf("%q %s", glob, why)})
			}
		}
	}
	complete, named := true, slices.Clone(tools.Order) // as rules match them: long names also whole
	for i, key := range r.keys {
		if tools.Lists[i] == nil {
			complete = false
			continue
		}
		var own []string
		for _, raw := range tools.Lists[i].Items {
			if name, ok := rawjson.GetString(raw, kinds[Tools].id); ok {
				own, named = append(own, name), append(named, r.cfg.FullName(key, name))
			}
		}
		at, filter := "upstreams."+key+".tools.", r.cfg.Upstreams[key].Tools
		why := fmt.Sprintf("fits no tool of %s: write the server's own names, without the prefix", key)
		check(at+"allow", filter.Allow, own, why)
		check(at+"deny", filter.Deny, own, why)
	}
	if complete { // else it may match a tool of a server that is down
		const why = "fits no tool: write the names that hosts see, as they are above"
		check("results.tools", slices.Sorted(maps.Keys(r.cfg.Results.Tools)), tools.Order, why)
		check("run.allow", r.cfg.Batch.Allow, tools.Order, why)
		check("tools.always", r.cfg.Tools.Always, tools.Order, why)
		for _, one := range [][2]string{{"folding.memory.tool", r.cfg.Folding.Memory.Tool}, {"folding.remember.tool", r.cfg.Folding.Remember.Tool}} {
			if one[1] != "" {
				check(one[0], one[1:], tools.Order, why)
			}
		}
		for i, l := range r.cfg.Budgets.Limits {
			at := fmt.Sprintf("budgets.limits[%d].", i)
			if l.Match.Tool != "" {
				check(at+"match.tool", []string{l.Match.Tool}, tools.Order, why)
			}
			if l.Per == "tool" {
				check(at+"subjects", slices.Sorted(maps.Keys(l.Subjects)), tools.Order, why)
			}
		}
		for i, rule := range r.cfg.Policy.Rules {
			check(fmt.Sprintf("policy.rules[%d].allow", i), rule.Allow, named, why)
			check(fmt.Sprintf("policy.rules[%d].deny", i), rule.Deny, named, why)
		}
	}
	return r.cfg.Locate(faults)
}
