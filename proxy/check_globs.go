package proxy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
)

// idle returns a fault for every glob on the names of tools that fits none. It
// may be meant for tools to come, but a deny that was mistyped hides nothing.
func (g *Gateway) idle(m *menu) (faults []config.Fault) {
	complete := true
	for i, u := range g.ups {
		if m.from[i] == nil {
			complete = false
			continue
		}
		var own []string
		for _, raw := range m.from[i].items {
			if name, ok := rawjson.GetString(raw, kinds[listTools].id); ok {
				own = append(own, name)
			}
		}
		at := "upstreams." + u.Key + ".tools."
		why := fmt.Sprintf("fits no tool of %s: write the server's own names, without the prefix", u.Key)
		faults = append(faults, unfit(at+"allow", u.Config.Tools.Allow, own, why)...)
		faults = append(faults, unfit(at+"deny", u.Config.Tools.Deny, own, why)...)
	}
	if complete { // else it may fit a tool of an upstream that is down
		const why = "fits no tool: write the names that hosts see, as they are above"
		faults = append(faults, unfit("results.tools", slices.Sorted(maps.Keys(g.cfg.Results.Tools)), m.order, why)...)
		faults = append(faults, unfit("run.allow", g.cfg.Run.Allow, m.order, why)...)
	}
	return g.cfg.Locate(faults)
}

// unfit returns a fault of key for each glob that fits none of names.
func unfit(key string, globs, names []string, why string) (faults []config.Fault) {
	for _, glob := range globs {
		if !slices.ContainsFunc(names, func(name string) bool { return config.MatchTool(glob, name) }) {
			faults = append(faults, config.Fault{Key: key, Msg: fmt.Sprintf("%q %s", glob, why)})
		}
	}
	return faults
}
