//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// hello returns the automatic answers of a played legacy upstream, by method.
func hello(instructions string) map[string]string {
	return map[string]string{
		"notifications/initialized": "", "server/discover": `{"code":-32601,"message":"Method not found"}`,
		"initialize":               `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{},"prompts":{}},"serverInfo":{"name":"p","version":"1"},"instructions":` + jsonText(instructions) + `}`,
		"tools/list":               `{"tools":[]}`,
		"prompts/list":             `{"prompts":[]}`,
		"resources/list":           `{"resources":[]}`,
		"resources/templates/list": `{"resourceTemplates":[]}`,
	}
}

// names returns one member of each item of a list, but for foldgate's own tools.
func names(t *testing.T, c *mcpclient.Client, method, field, member string) (out []string) {
	t.Helper()
	var r map[string]json.RawMessage
	unmarshal(t, call(t, c, testContext(t), method, `{}`).Result, &r)
	var list []map[string]any
	unmarshal(t, r[field], &list)
	for _, item := range list {
		if name := item[member].(string); !strings.HasPrefix(name, "branch_") {
			out = append(out, name)
		}
	}
	return out
}

func toolItem(name string) string {
	return fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name)
}

// A tool that typed hosts can't read does not take the others away from them.
func TestUnreadableTool(t *testing.T) {
	t.Parallel()
	good, bad := newPlayer(t, "stdio", mcpclient.Legacy, hello("")), newPlayer(t, "stdio", mcpclient.Legacy, hello(""))
	good.script = func(m mcpclient.Message) string {
		return map[string]string{"tools/list": `{"tools":[` + toolItem("a") + `]}`}[m.Method]
	}
	bad.script = func(m mcpclient.Message) string {
		return map[string]string{"tools/list": `{"tools":[{"name":"b","inputSchema":null},7,{"name":"c","inputSchema":{},"description":["d"]},{"name":"e","inputSchema":{"properties":[]}},{"name":"f","title":null,"inputSchema":{"properties":{"x":true}}},` + toolItem("d") + `]}`}[m.Method]
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  bad: {%s}\n  good: {%s}\n", bad.config, good.config))
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		if got := names(t, g.connect(testContext(t), "stdio", era), "tools/list", "tools", "name"); !slices.Equal(got, []string{"bad__f", "bad__d", "good__a"}) {
			t.Errorf("%s: hosts see %v", era, got)
		}
	}
	if said := g.output("check"); strings.Count(said, "is not shown") != 4 {
		t.Errorf("foldgate check says %s", said)
	}
}

// Instructions that no model should read, and a description that is too long to be kept, cost foldgate nothing.
func TestInstructionsAreBounded(t *testing.T) {
	t.Parallel()
	long, fair, icons := newPlayer(t, "stdio", mcpclient.Legacy, hello(strings.Repeat("x", 64<<10+1))), newPlayer(t, "stdio", mcpclient.Legacy, hello(strings.Repeat("y", 64<<10))), hello("")
	icons["initialize"] = strings.Replace(icons["initialize"], `"name":"p"`, `"name":"p","icons":[{"src":"data:`+strings.Repeat("A", 1<<20)+`"}]`, 1)
	large := newPlayer(t, "stdio", mcpclient.Legacy, icons)
	g := newGateway(t, fmt.Sprintf("upstreams:\n  long: {%s}\n  fair: {%s}\n  large: {%s}\n", long.config, fair.config, large.config))
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		result, err := g.unstarted("stdio", era).Start(testContext(t))
		if said, _ := rawjson.GetString(result, "instructions"); err != nil || strings.Contains(said, "xxx") || !strings.Contains(said, "they have 65537 bytes") || strings.Count(said, "y") < 64<<10 {
			t.Errorf("%s: the instructions are %.300s… (%d bytes), err %v", era, said, len(said), err)
		}
	}
	if !strings.Contains(g.log.String(), "upstream describes itself in 1048") {
		t.Errorf("the log does not name the long description: %s", g.log.String())
	}
}

// A list that has no end costs foldgate a bounded amount of memory, and one with many definitions a bounded
// number of lines in the log.
func TestListsAreCut(t *testing.T) {
	t.Parallel()
	endless, many := newPlayer(t, "stdio", mcpclient.Legacy, hello("")), newPlayer(t, "stdio", mcpclient.Legacy, hello(""))
	var pages atomic.Int64
	endless.script = func(m mcpclient.Message) string {
		if m.Method != "tools/list" {
			return ""
		}
		return fmt.Sprintf(`{"tools":[%s],"nextCursor":"%d%s"}`, toolItem("a"), pages.Add(1), strings.Repeat("-", 8<<20))
	}
	var size atomic.Int64 // of the list
	size.Store(1)
	many.script = func(m mcpclient.Message) string {
		if m.Method != "tools/list" {
			return ""
		}
		var items []string
		for i := range size.Swap(5000) {
			items = append(items, toolItem(fmt.Sprint("t", i)))
		}
		return `{"tools":[` + strings.Join(items, ",") + `]}`
	}
	tiny := newPlayer(t, "stdio", mcpclient.Legacy, hello(""))
	tiny.script = func(m mcpclient.Message) string {
		if m.Method != "resources/list" {
			return ""
		}
		var items []string
		for i := range 100_001 {
			items = append(items, fmt.Sprintf(`{"uri":"a:%d","name":"c"}`, i))
		}
		return `{"resources":[` + strings.Join(items, ",") + `]}`
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  endless: {%s}\n  many: {%s}\n  tiny: {%s}\n", endless.config, many.config, tiny.config))
	c := g.connect(testContext(t), "stdio", mcpclient.Legacy)
	if n := len(names(t, c, "resources/list", "resources", "uri")); n != 100_000 || !strings.Contains(g.log.String(), "items=100000") {
		t.Errorf("hosts see %d resources, want 100000 and a warning", n)
	}
	sees := func(want ...string) {
		t.Helper()
		until(t, fmt.Sprint("hosts see ", want), func() bool {
			seen := names(t, c, "tools/list", "tools", "name")
			return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(seen, name) })
		})
	}
	sees("endless__a", "many__t0")
	many.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, true)
	sees("many__t4999")
	until(t, "the log tells how many definitions there are more", func() bool { return strings.Contains(g.log.String(), "definitions=3999") })
	if n := strings.Count(g.log.String(), "a definition is not as it was approved"); n != 1000 {
		t.Errorf("%d definitions are logged, want 1000", n)
	}
	if n := pages.Load(); n > 12 {
		t.Errorf("foldgate read %d pages of 8 MiB", n)
	}
}

// TestCatalog: many pages, two upstreams, names that clash, are too long, are
// denied; in the order of the configuration, the same for every host.
func TestCatalog(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long_", 20)
	first, second := newPlayer(t, "stdio", mcpclient.Legacy, hello("First things first.")), newPlayer(t, "http", mcpclient.Legacy, hello("Second thoughts."))
	first.script = func(m mcpclient.Message) string {
		switch m.Method {
		case "tools/list": // 30 pages, with a cursor that is not of the simplest
			var p struct{ Cursor string }
			_ = json.Unmarshal(m.Params, &p)
			n := 0
			fmt.Sscanf(p.Cursor, "\ud7ff \"%d\"", &n)
			next := fmt.Sprintf(`,"nextCursor":%s`, jsonText(fmt.Sprintf("\ud7ff \"%d\"", n+1)))
			if n == 29 {
				next = ""
			}
			return fmt.Sprintf(`{"tools":[%s]%s}`, toolItem(fmt.Sprintf("page%02d", n)), next)
		case "resources/list":
			return `{"resources":[{"uri":"mem://both","name":"first"},{"uri":"mem://1","name":"1"}]}`
		case "prompts/list":
			return `{"prompts":[{"name":"same","description":"first"}]}`
		case "resources/read":
			return `{"contents":[],"from":"first"}`
		}
		return ""
	}
	second.script = func(m mcpclient.Message) string {
		switch m.Method {
		case "tools/list":
			return fmt.Sprintf(`{"tools":[%s,%s,%s,%s]}`, toolItem("page03"), toolItem(long), toolItem("secret_drop"), toolItem("other"))
		case "tools/call":
			var p struct{ Name string }
			_ = json.Unmarshal(m.Params, &p)
			return fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, p.Name)
		case "resources/list":
			return `{"resources":[{"uri":"mem://both","name":"second"},{"uri":"mem://2","name":"2"}]}`
		case "prompts/list":
			return `{"prompts":[{"name":"same","description":"second"}]}`
		}
		return ""
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  zz: {prefix: \"\", %s}\n  aa: {prefix: \"\", tools: {deny: [secret_*, \"{ba,ob}*\"]}, %s}\n", first.config, second.config))
	url := g.http()
	var want, wantTools []string
	for n := range 30 {
		wantTools = append(wantTools, fmt.Sprintf("page%02d", n))
	}
	short := regexp.MustCompile(`^long_[a-z_]+[0-9a-f]{8}$`)
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		c := mcpclient.HTTP(url, era)
		g.closes(c)
		start, err := c.Start(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		if s := string(start); !regexp.MustCompile(`# zz\\nFirst things first\.\\n\\n# aa\\nSecond thoughts\.`).MatchString(s) {
			t.Errorf("%s: instructions are not under their names in order: %s", era, s)
		}
		tools := names(t, c, "tools/list", "tools", "name")
		if i := slices.IndexFunc(tools, short.MatchString); i < 0 || len(tools[i]) > 64 {
			t.Fatalf("%s: the long name is not shortened: %v", era, tools)
		} else if got := text(t, c, testContext(t), tools[i], `{}`); got != long {
			t.Errorf("%s: %s reaches %q", era, tools[i], got)
		} else if diff := cmp.Diff(append(slices.Clone(wantTools), tools[i], "other"), tools); diff != "" {
			t.Errorf("%s: tools (-want +got):\n%s", era, diff)
		}
		if want == nil {
			want = tools
		} else if diff := cmp.Diff(want, tools); diff != "" {
			t.Errorf("the eras see different lists:\n%s", diff)
		}
		if m, err := c.Call(testContext(t), "tools/call", `{"name":"secret_drop","arguments":{}}`); err != nil || !strings.Contains(string(m.Result), "Unknown tool") {
			t.Errorf("%s: a denied tool = %s %s, %v", era, m.Result, m.Error, err)
		}
		if diff := cmp.Diff([]string{"mem://both", "mem://1", "mem://2"}, names(t, c, "resources/list", "resources", "uri")); diff != "" {
			t.Errorf("%s: resources:\n%s", era, diff)
		}
		if m := call(t, c, testContext(t), "resources/read", `{"uri":"mem://both"}`); !strings.Contains(string(m.Result), `"from":"first"`) {
			t.Errorf("%s: the resource that both have = %s, want the first's, as listed", era, m.Result)
		}
		if diff := cmp.Diff([]string{"same"}, names(t, c, "prompts/list", "prompts", "name")); diff != "" {
			t.Errorf("%s: prompts:\n%s", era, diff)
		}
	}
	until(t, "each of the three names that clash is in the log once", func() bool {
		return strings.Count(g.log.String(), "two upstreams offer the same name") == 3
	})
	cmd := g.command("check")
	out, err := cmd.Output()
	if err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("check with names that clash: %v, want exit code 1", err)
	}
	check := string(out)
	for _, what := range []string{long, "page03", "clash: same is offered by zz and by aa"} {
		if !strings.Contains(check, what) {
			t.Errorf("check does not show %s:\n%s", what, check)
		}
	}
}

// TestListChangesAreGathered: a burst of changes at two upstreams becomes few notifications, and
// each list is fetched again when a host asks for it.
func TestListChangesAreGathered(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			ctx := testContext(t)
			p := newPlayer(t, transport, mcpclient.Legacy, hello(""))
			g := newGateway(t, "upstreams:\n  up: {"+p.config+"}\n")
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			var heard noted
			c.Handle = heard.handle(nil)
			if got := names(t, c, "tools/list", "tools", "name"); len(got) != 0 {
				t.Fatalf("tools = %v", got)
			}
			p.script = nil
			p.play("tools/call", true)
			_, wait, err := c.Send(ctx, "tools/call", `{"name":"up__none","arguments":{}}`)
			if err != nil {
				t.Fatal(err)
			}
			if m, err := wait(); err != nil || !strings.Contains(string(m.Result), "Unknown tool") {
				t.Fatalf("a tool that is not there = %s %v", m.Error, err)
			}
			p.mu.Lock()
			p.auto["tools/list"] = `{"tools":[` + toolItem("new") + `]}`
			p.mu.Unlock()
			for range 100 {
				p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, true)
			}
			until(t, "list_changed arrives", func() bool { return heard.has("tools/list_changed") > 0 })
			if got := names(t, c, "tools/list", "tools", "name"); !slices.Equal(got, []string{"up__new"}) {
				t.Errorf("tools after the change = %v", got)
			}
			if n := heard.has("tools/list_changed"); n > 5 {
				t.Errorf("100 changes at once became %d notifications", n)
			}
		})
	}
}

// TestAlwaysChangedList: a server that announces a change of its tools with each list has tools.
func TestAlwaysChangedList(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		p := newPlayer(t, "stdio", mcpclient.Legacy, hello(""))
		p.script = func(m mcpclient.Message) string {
			if m.Method == "tools/list" {
				p.unasked(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
				return `{"tools":[` + toolItem("a") + `]}`
			}
			return map[string]string{"tools/call": `{"content":[{"type":"text","text":"done"}]}`}[m.Method]
		}
		c := newGateway(t, "upstreams:\n  up: {"+p.config+"}\n").connect(testContext(t), transport, era)
		for range 2 {
			if got := names(t, c, "tools/list", "tools", "name"); !slices.Equal(got, []string{"up__a"}) {
				t.Errorf("tools = %v", got)
			}
		}
		if got := text(t, c, testContext(t), "up__a", `{}`); got != "done" {
			t.Errorf("a call = %q", got)
		}
	})
}

// hearsOfTools lets a host hear of changes of the list of tools.
func hearsOfTools(t *testing.T, c *mcpclient.Client, transport string, era mcpclient.Era) {
	t.Helper()
	if era == mcpclient.Modern {
		listens(t, c, `{"toolsListChanged":true}`)
	} else if transport == "http" {
		if err := c.Listen(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLateList: an upstream that is slow to list its tools holds up the first
// list for a while and no later one; its tools are announced when they come.
func TestLateList(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		t.Parallel()
		ctx := testContext(t)
		p := newPlayer(t, "stdio", mcpclient.Legacy, hello(""))
		p.play("tools/list", true)
		g := newGateway(t, fakeConfig(recordFile(t), "  late: {"+p.config+"}\n"))
		c := g.connect(ctx, transport, era)
		var heard noted
		c.Handle = heard.handle(nil)
		hearsOfTools(t, c, transport, era)
		names(t, c, "tools/list", "tools", "name")
		start := time.Now()
		if got := names(t, c, "tools/list", "tools", "name"); !slices.Contains(got, "fake__echo") || slices.Contains(got, "late__t") {
			t.Errorf("tools = %v", got)
		}
		text(t, c, ctx, "fake__text", `{"text":"x"}`)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("a list and a call beside the late upstream took %v", took)
		}
		asked, err := mcpclient.Parse([]byte(<-p.got))
		if err != nil {
			t.Fatal(err)
		}
		before := heard.has("tools/list_changed")
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`, asked.ID, toolItem("t")), false)
		until(t, "list_changed arrives", func() bool { return heard.has("tools/list_changed") > before })
		if got := names(t, c, "tools/list", "tools", "name"); !slices.Contains(got, "late__t") {
			t.Errorf("tools after all = %v", got)
		}
	})
}

// TestDefinitionsSurvive: definitions that typed proxies drop, break or refuse are listed
// unchanged (losses 4 to 6), except for foldgate's additions.
func TestDefinitionsSurvive(t *testing.T) {
	t.Parallel()
	_, auto := conversations(t, "legacy")
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			p := newPlayer(t, transport, mcpclient.Legacy, auto)
			g := newGateway(t, "results: {tools: {\"*\": {fold: off}}}\nupstreams:\n  up: {prefix: \"\", "+p.config+"}\n")
			c := g.connect(testContext(t), "stdio", mcpclient.Legacy)
			for _, method := range []string{"prompts/list", "resources/list", "resources/templates/list"} {
				if got := string(call(t, c, testContext(t), method, `{}`).Result); got != auto[method] {
					t.Errorf("%s:\n%s\nwant\n%s", method, got, auto[method])
				}
			}
			got := string(call(t, c, testContext(t), "tools/list", `{}`).Result)
			added := regexp.MustCompile(`\{"name":"t","inputSchema":\{"type":"object","properties":\{("branch_id":\{[^{}]*\})`).FindStringSubmatch(got)
			if added == nil {
				t.Fatalf("no branch_id in %s", got)
			}
			want := strings.NewReplacer(
				`{"name":"t","inputSchema":{"type":"object"}}`, `{"name":"t","inputSchema":{"type":"object","properties":{`+added[1]+`}}}`,
				`{"a":{"type":"object"}}}}`, `{"a":{"type":"object"}},"type":"object"}}`,
				`"x-new":1.0}}`, `"x-new":1.0},`+added[1]+`}`,
				`\u0000"}}`, `\u0000"},`+added[1]+`}`,
			).Replace(strings.TrimPrefix(auto["tools/list"], `{"tools":[`))
			if !strings.HasSuffix(got, want) {
				t.Errorf("tools/list:\n%s\nwant at its end\n%s", got, want)
			}
		})
	}
}

// TestListsAreReadyAtOnce: the lists of an earlier process answer a host while the servers start.
// The host hears of a change, and only of a change.
func TestListsAreReadyAtOnce(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		for _, list := range [][]string{{"up__t"}, {"up__t", "up__new"}} {
			t.Run(strings.Join(list, " "), func(t *testing.T) {
				t.Parallel()
				ctx := testContext(t)
				auto := hello("")
				auto["tools/list"] = `{"tools":[` + toolItem("t") + `]}`
				auto["tools/call"] = `{"content":[]}`
				p := newPlayer(t, "stdio", mcpclient.Legacy, auto)
				g := newGateway(t, "upstreams:\n  up: {"+p.config+"}\n")
				names(t, g.connect(ctx, transport, era), "tools/list", "tools", "name")
				g.stop()

				p.play("initialize", true) // the server takes its time
				if len(list) > 1 {
					p.mu.Lock()
					p.auto["tools/list"] = `{"tools":[` + toolItem("t") + "," + toolItem("new") + `]}`
					p.mu.Unlock()
				}
				c := g.connect(ctx, transport, era)
				var heard noted
				c.Handle = heard.handle(nil)
				hearsOfTools(t, c, transport, era)
				if got := names(t, c, "tools/list", "tools", "name"); !slices.Equal(got, []string{"up__t"}) {
					t.Errorf("tools while the server starts = %v, want those of before", got)
				}
				asked, err := mcpclient.Parse([]byte(<-p.got))
				if err != nil {
					t.Fatal(err)
				}
				p.play("initialize", false)
				p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, asked.ID, auto["initialize"]), false)
				if len(list) > 1 {
					until(t, "list_changed arrives", func() bool { return heard.has("tools/list_changed") > 0 })
				}
				call(t, c, ctx, "tools/call", `{"name":"up__t","arguments":{}}`)
				if got := names(t, c, "tools/list", "tools", "name"); !slices.Equal(got, list) {
					t.Errorf("tools after the start = %v, want %v", got, list)
				}
				if n := heard.has("tools/list_changed"); n > len(list)-1 {
					t.Errorf("the host heard of %d changes, want %d", n, len(list)-1)
				}
			})
		}
	})
}

// TestFirstStart: a host is answered before a server has ever been up. It may ask for every list, and
// gets foldgate's own tools. It hears of the lists that come later, and of no others. Claude Code, which
// begins its work after 2 seconds, waits for less than those.
func TestFirstStart(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		t.Parallel()
		ctx := testContext(t)
		auto := hello("")
		auto["tools/list"] = `{"tools":[` + toolItem("t") + `]}`
		p := newPlayer(t, "stdio", mcpclient.Legacy, auto)
		p.play("initialize", true)
		g := newGateway(t, "upstreams:\n  up: {"+p.config+"}\n")
		c := g.unstarted(transport, era)
		c.Name = "claude-code"
		c.Capabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}},"roots":{"listChanged":true}}` // as foldgate's own first connection
		var heard noted
		c.Handle = heard.handle(nil)
		greeting, err := c.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"tools":{"listChanged":true}`, `"prompts":{"listChanged":true}`, `"resources":{"subscribe":true,"listChanged":true}`, `"logging":{}`, `"completions":{}`} {
			if !strings.Contains(string(greeting), want) {
				t.Errorf("the host is not told %s: %s", want, greeting)
			}
		}
		hearsOfTools(t, c, transport, era)
		if got := string(call(t, c, ctx, "tools/list", `{}`).Result); !strings.Contains(got, `"branch_create"`) || strings.Contains(got, "up__t") {
			t.Errorf("tools while the server starts: %.300s", got)
		}
		for method, member := range map[string]string{"prompts/list": "prompts", "resources/list": "resources"} {
			if got := names(t, c, method, member, "name"); len(got) > 0 {
				t.Errorf("%s while the server starts = %v", method, got)
			}
		}
		if era == mcpclient.Legacy {
			call(t, c, ctx, "logging/setLevel", `{"level":"info"}`)
		}
		asked, err := mcpclient.Parse([]byte(<-p.got))
		if err != nil {
			t.Fatal(err)
		}
		p.play("initialize", false)
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, asked.ID, auto["initialize"]), false)
		until(t, "list_changed arrives", func() bool { return heard.has("tools/list_changed") > 0 })
		if got := names(t, c, "tools/list", "tools", "name"); !slices.Equal(got, []string{"up__t"}) {
			t.Errorf("tools after the start = %v", got)
		}
		if n := heard.has("(prompts|resources)/list_changed"); n > 0 {
			t.Errorf("the host heard %d times of lists that are empty", n)
		}
	})
}
