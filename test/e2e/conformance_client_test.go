//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// clientScenarios are the scenarios of the official suite for clients, but for those of authorization, with the
// revisions at which they run.
var clientScenarios = map[string][]string{
	"initialize":                {"2025-06-18", "2025-11-25"},
	"tools_call":                {"2025-06-18", "2025-11-25", "2026-07-28"},
	"sse-retry":                 {"2025-11-25"},
	"request-metadata":          {"2026-07-28"},
	"http-standard-headers":     {"2026-07-28"},
	"http-custom-headers":       {"2026-07-28"},
	"http-invalid-tool-headers": {"2026-07-28"},
	"json-schema-ref-no-deref":  {"2026-07-28"},
}

// scenariosOfHosts are about what foldgate passes from its host.
var scenariosOfHosts = map[string]string{
	"elicitation-sep1034-client-defaults": "the host fills forms in",
	"sep-2322-client-request-state":       "the host answers questions",
	"json-schema-2020-12-preservation":    "the host repeats the schema of a tool",
	"sep-2640-client-no-prefetch":         "the host has skills",
	"sep-2640-client-verify-digest":       "the same",
	"sep-2640-client-verify-size":         "the same",
	"sep-2640-client-verify-frontmatter":  "the same",
}

// foldgate's side of upstreams passes the scenarios of the official suite for clients: a host on stdio lists
// all and calls each tool, as the scenario says or with values that fit.
func TestConformanceOfClients(t *testing.T) {
	t.Parallel()
	for _, name := range clientScenarioNames(t, "") {
		if !strings.HasPrefix(name, "auth/") && clientScenarios[name] == nil && scenariosOfHosts[name] == "" {
			t.Errorf("the suite has the scenario %s, which is not run", name)
		}
	}
	for scenario, revisions := range clientScenarios {
		for _, revision := range revisions {
			t.Run(revision+"/"+scenario, func(t *testing.T) {
				t.Parallel()
				era := mcpclient.Legacy
				if revision == "2026-07-28" {
					era = mcpclient.Modern
				}
				runScenario(t, scenario, revision, func(task suiteTask) error { return listAndCall(t, era, task) })
			})
		}
	}
}

func listAndCall(t *testing.T, era mcpclient.Era, task suiteTask) error {
	g := newGateway(t, fmt.Sprintf("upstreams:\n  suite: {url: %q, prefix: \"\"}\n", task.URL))
	defer g.stop()
	ctx := testContext(t)
	c := g.connect(ctx, "stdio", era)
	type toolCall struct {
		Name      string         `json:"name"`
		Arguments map[string]any `json:"arguments"`
	}
	var context struct{ ToolCalls []toolCall }
	if len(task.Context) > 0 {
		if err := json.Unmarshal(task.Context, &context); err != nil {
			return err
		}
	}
	var list struct {
		Tools []struct {
			Name        string
			InputSchema struct {
				Properties map[string]struct{ Type json.RawMessage }
			}
		}
		Prompts   []struct{ Name string }
		Resources []struct{ URI string }
	}
	for _, method := range []string{"tools/list", "prompts/list", "resources/list"} {
		m, err := c.Call(ctx, method, "{}")
		if err != nil {
			return err
		}
		if m.Error == nil { // the server of some scenarios has tools only
			if err := json.Unmarshal(m.Result, &list); err != nil {
				return err
			}
		}
	}
	calls := context.ToolCalls
	for _, one := range list.Tools {
		if own := strings.HasPrefix(one.Name, "branch_"); own || len(context.ToolCalls) > 0 {
			continue
		}
		arguments := map[string]any{}
		for name, p := range one.InputSchema.Properties {
			if fits := map[string]any{`"string"`: "x", `"number"`: 5, `"integer"`: 5, `"boolean"`: true}[string(p.Type)]; fits != nil && name != "branch_id" {
				arguments[name] = fits
			}
		}
		calls = append(calls, toolCall{one.Name, arguments})
	}
	ask := func(method string, params any) error { // the suite judges; the servers of some scenarios answer only some methods
		text, err := json.Marshal(params)
		if err == nil {
			_, err = c.Call(ctx, method, string(text))
		}
		return err
	}
	var faults []error
	for _, one := range calls {
		faults = append(faults, ask("tools/call", one))
	}
	for _, one := range list.Prompts {
		faults = append(faults, ask("prompts/get", map[string]string{"name": one.Name}))
	}
	for _, one := range list.Resources {
		faults = append(faults, ask("resources/read", map[string]string{"uri": one.URI}))
	}
	return errors.Join(faults...)
}
