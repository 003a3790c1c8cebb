package gosdk

//lint:file-ignore SA1019 what the protocol deprecates still has to be scrubbed and charged

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/test/fixtures"
)

// A shape is a form in which a tool answers, made around a text.
type shape func(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error)

func content(c ...mcp.Content) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{Content: c}, nil
}

func block(text string) *mcp.TextContent { return &mcp.TextContent{Text: text} }

var shapes = map[string]shape{
	"text": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(block(text))
	},
	"blocks": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(block("first"), block(text), block(""), &mcp.TextContent{Text: "last", Meta: mcp.Meta{"m": text}, Annotations: &mcp.Annotations{Audience: []mcp.Role{"user"}, Priority: 0.25}})
	},
	"nothing": func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		return content()
	},
	"image": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(&mcp.ImageContent{MIMEType: "image/png", Data: []byte(text)}, block("an image"))
	},
	"audio": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(&mcp.AudioContent{MIMEType: "audio/wav", Data: []byte(text), Meta: mcp.Meta{"x": 1.0}})
	},
	"link": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		size := int64(7)
		return content(&mcp.ResourceLink{URI: "file:///a", Name: "a", Title: "A", Description: text, MIMEType: "text/plain", Size: &size})
	},
	"embedded": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///a", MIMEType: "text/plain", Text: text}},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///b", MIMEType: "application/octet-stream", Blob: []byte(text)}})
	},
	"structured": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{block("see the structure")}, StructuredContent: map[string]any{"text": text, "n": 1}}, nil
	},
	"raw structure": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		line, _ := json.Marshal(text)
		return &mcp.CallToolResult{Content: []mcp.Content{}, StructuredContent: json.RawMessage(`{"z":12345678901234567890,"a":1.50,"u":"<\u0041&\u2028>","e":1e3,"text":` + string(line) + `}`)}, nil
	},
	"a list": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(block(`[{"id":1,"text":` + fmt.Sprintf("%q", text) + `},{"id":2,"text":"b"}]`))
	},
	"meta": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Meta: mcp.Meta{"x/y": map[string]any{"text": text}}, Content: []mcp.Content{block("with meta")}}, nil
	},
	"odd characters": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(block("<b>&\u2028\u2029\x00\x7f\r\n\t\"\\ \U0001F600 \ufffd" + text))
	},
	"bad UTF-8": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return content(block("a\xff\xfeb\xc3" + text))
	},
	"tool error": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{block(text)}}, nil
	},
	"structured tool error": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{block("failed")}, StructuredContent: map[string]any{"why": text}}, nil
	},
	"error": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32001, Message: text}
	},
	"error data": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		line, _ := json.Marshal(text)
		return nil, &jsonrpc.Error{Code: -32000, Message: "failed", Data: json.RawMessage(`{"why":` + string(line) + `,"n":1.0}`)}
	},
	"plain error": func(_ context.Context, _ *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		return nil, errors.New(text)
	},
	"progress": func(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1, Total: 2, Message: text}) // a server behind a gateway never hears that one was refused
		return content(block("progress was sent"))
	},
	"log": func(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		_ = req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "error", Logger: "l", Data: map[string]any{"text": text}})
		return content(block("logged"))
	},
}

// legacyShapes ask the client something.
var legacyShapes = map[string]shape{
	"sampling": func(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		res, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 10, SystemPrompt: text, Messages: []*mcp.SamplingMessage{{Role: "user", Content: block("say yes")}}})
		if err != nil {
			return content(block("no answer"))
		}
		return content(res.Content)
	},
	"elicitation": func(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: text, RequestedSchema: &jsonschema.Schema{Type: "object"}})
		if err != nil {
			return content(block("no answer"))
		}
		return content(block(res.Action))
	},
	"roots": func(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		res, err := req.Session.ListRoots(ctx, nil)
		if err != nil {
			return content(block("no answer"))
		}
		return content(block(fmt.Sprint(len(res.Roots), " roots ", text)))
	},
}

// inputShapes ask the client in their results.
var inputShapes = map[string]shape{
	"needs input": func(_ context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, error) {
		if len(req.Params.InputResponses) > 0 {
			return content(block("answered with " + req.Params.RequestState))
		}
		return &mcp.CallToolResult{RequestState: "state", InputRequests: mcp.InputRequestMap{"sure": &mcp.ElicitParams{Message: text, RequestedSchema: &jsonschema.Schema{Type: "object"}}}}, nil
	},
}

// shaper returns a server with a tool for each shape and text, and a prompt and a resource for each text.
func (p plan) shaper(all map[string]shape, texts map[string]string) *mcp.Server {
	o := &mcp.ServerOptions{SupportedProtocolVersions: []string{p.Era}, CompletionHandler: func(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{"a", texts[req.Params.Argument.Value]}, Total: 2}}, nil
	}}
	o.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
	o.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
	s := mcp.NewServer(&mcp.Implementation{Name: "shaper", Version: "1"}, o)
	for name, make := range all {
		for which, text := range texts {
			s.AddTool(&mcp.Tool{Name: strings.ReplaceAll(name, " ", "-") + "." + which, Description: "Answers with " + which, InputSchema: json.RawMessage(`{"type":"object","properties":{"x":{"type":"string"}}}`), OutputSchema: json.RawMessage(`{"type":"object"}`)},
				func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					return make(ctx, req, text)
				})
		}
	}
	for which, text := range texts {
		s.AddPrompt(&mcp.Prompt{Name: which, Title: "The prompt " + which, Arguments: []*mcp.PromptArgument{{Name: "x", Required: which == "short"}}}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Description: "d", Meta: mcp.Meta{"m": text}, Messages: []*mcp.PromptMessage{
				{Role: "user", Content: block(text)}, {Role: "assistant", Content: &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "shape://x", Text: text}}},
			}}, nil
		})
		s.AddResource(&mcp.Resource{URI: "shape://" + which, Name: which}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "shape://" + which, Text: text}, {URI: "shape://" + which, Blob: []byte(text), Meta: mcp.Meta{"m": text}}}}, nil
		})
	}
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "gone://{x}", Name: "gone"}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	})
	return s
}

// What a client sees, what is charged and what is recorded is the same through the middleware as through
// a gateway in front of the same server: for every shape of a result, short and long, with and without a
// secret, in main and in a branch, with and without a limit. docs/embedding.md has what differs.
func TestNothingDiffersFromTheGateway(t *testing.T) {
	secret := fixtures.Secret()
	long := strings.Repeat("GET /orders 200 12ms\n", 150)
	texts := map[string]string{"short": "a short text", "short-secret": "api token " + secret, "long": long, "long-secret": long + "token: " + secret + "\n" + long}
	for _, era := range []string{legacy, modern} {
		all := maps.Clone(shapes)
		if era == legacy {
			maps.Copy(all, legacyShapes)
		} else {
			maps.Copy(all, inputShapes)
		}
		for name, tc := range map[string]struct {
			change func(*config.Config)
			places []int // 0 is main, another number the budget of a branch
		}{
			"unlimited":      {func(*config.Config) {}, []int{0, 5000, 300}},
			"limit":          {func(c *config.Config) { c.Budgets.Limits = limitOf(t, limits.Limit{Tokens: 500}) }, []int{0}},
			"limit, branch":  {func(c *config.Config) { c.Budgets.Limits = limitOf(t, limits.Limit{Tokens: 500}) }, []int{5000}},
			"limit of calls": {func(c *config.Config) { c.Budgets.Limits = limitOf(t, limits.Limit{Calls: 1}) }, []int{0, 0}},
			"block":          {func(c *config.Config) { c.Scrub.Results, c.Scrub.Arguments = "block", "block" }, []int{0, 300}},
			"off":            {func(c *config.Config) { c.Scrub.Results, c.Scrub.Arguments = "off", "report" }, []int{0}},
		} {
			t.Run(era+" "+name, func(t *testing.T) {
				texts := maps.Clone(texts)
				if name != "unlimited" {
					delete(texts, "short")
					delete(texts, "long-secret")
				}
				var seen, traced [2][]string
				for i, mountOn := range []func(p plan) string{
					func(p plan) string { return gatewayBefore(t, p, p.shaper(all, texts)) },
					func(p plan) string { return overHTTP(t, p, mount(p.shaper(all, texts), embed(t, p, nil))) },
				} {
					p := plan{Era: era, Folded: 500, State: filepath.Join(t.TempDir(), "state"), change: func(c *config.Config) {
						c.Folding.MaxBranchesPerMinute, c.Folding.MaxBranchesPerMinutePerPrincipal = 10000, 10000
						tc.change(c)
					}}
					seen[i] = everything(client(t, p, mountOn(p)), all, texts, tc.places)
					traced[i] = outlines(t, p.State)
				}
				for what, both := range map[string][2][]string{"what a client sees": seen, "the records": traced} {
					if len(both[0]) < len(texts)*len(all)*len(tc.places) {
						t.Errorf("%s has %d lines only", what, len(both[0]))
					}
					if diff := gocmp.Diff(both[0], both[1]); diff != "" {
						t.Errorf("%s (-gateway +middleware):\n%.20000s", what, diff)
					}
				}
			})
		}
	}
}

// limitOf returns a limit of each tool.
func limitOf(t *testing.T, l limits.Limit) []limits.Limit {
	l.Name, l.Per = "tool", limits.PerTool
	if err := l.Window.UnmarshalText([]byte("rolling 366d")); err != nil {
		t.Fatal(err)
	}
	return []limits.Limit{l}
}

// everything uses all that a server has, in main and in a branch, and returns what a client sees.
func everything(r *rig, all map[string]shape, texts map[string]string, places []int) []string {
	l := listener{exact: true}
	r.said = l.message
	ctx := r.t.Context()
	for _, which := range slices.Sorted(maps.Keys(texts)) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			l.begin(strings.ReplaceAll(name, " ", "-") + "." + which)
			r.everywhere(&l, places, func(branchID string) (any, error) {
				p := &mcp.CallToolParams{Name: strings.ReplaceAll(name, " ", "-") + "." + which, Arguments: json.RawMessage(`{"x":"` + texts[which][:9] + `"}`), Meta: mcp.Meta{}}
				if branchID != "" {
					p.Arguments = json.RawMessage(`{"branch_id":"` + branchID + `","x":"in a branch"}`)
				}
				p.SetProgressToken("p")
				return r.c.CallTool(ctx, p)
			})
		}
		l.begin("prompt " + which)
		r.everywhere(&l, places, func(branchID string) (any, error) {
			return r.c.GetPrompt(ctx, &mcp.GetPromptParams{Name: which, Meta: branchMeta(branchID), Arguments: map[string]string{"x": texts[which][:9]}})
		})
		l.begin("resource " + which)
		r.everywhere(&l, places, func(branchID string) (any, error) {
			return r.c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "shape://" + which, Meta: branchMeta(branchID)})
		})
		l.begin("completion " + which)
		r.everywhere(&l, places, func(branchID string) (any, error) {
			return r.c.Complete(ctx, &mcp.CompleteParams{Meta: branchMeta(branchID), Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: which}, Argument: mcp.CompleteParamsArgument{Name: "x", Value: which}})
		})
	}
	l.begin("the rest")
	note := l.note
	prompts, err := r.c.ListPrompts(ctx, nil)
	note("prompts/list", prompts.Prompts, err)
	resources, err := r.c.ListResources(ctx, nil)
	note("resources/list", resources.Resources, err)
	templates, err := r.c.ListResourceTemplates(ctx, nil)
	note("resources/templates/list", templates.ResourceTemplates, err)
	missing, err := r.c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "gone://a"})
	note("resources/read", missing, err)
	if r.plan.Era == legacy {
		note("subscribe", nil, r.c.Subscribe(ctx, &mcp.SubscribeParams{URI: "shape://short"}))
		note("unsubscribe", nil, r.c.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: "shape://short"}))
		note("ping", nil, r.c.Ping(ctx, nil))
	}
	_ = r.c.Close() // all messages have come
	slices.Sort(l.said)
	return append(l.seen, l.said...)
}

// everywhere does something in each place. It notes what came back and what the branches paid.
func (r *rig) everywhere(l *listener, places []int, do func(branchID string) (any, error)) {
	for _, budget := range places {
		if budget == 0 {
			res, err := do("")
			l.note("main", res, err)
			continue
		}
		b := own[branch](r, "branch_create", fmt.Sprintf(`{"description":"work","budget":%d}`, budget)).BranchID
		res, err := do(b)
		l.note(fmt.Sprint("branch of ", budget), res, err)
		l.note("status", own[branch](r, "branch_status", `{"branch_id":"`+b+`"}`), nil)
		r.call("branch_return", `{"branch_id":"`+b+`","message":"done"}`)
	}
}

func branchMeta(id string) mcp.Meta {
	if id == "" {
		return nil
	}
	return mcp.Meta{"io.github.foldgate/branch_id": id}
}

// listener notes what a client sees, with what differs from run to run left out.
type listener struct {
	mu    sync.Mutex
	what  string
	exact bool // until a preview was charged: handles have different numbers of tokens
	seen  []string
	said  []string // by the server, on its way of its own
}

func (l *listener) begin(what string) { l.what, l.exact = what, true }

func (l *listener) note(what string, v any, err error) {
	line, _ := json.Marshal(v)
	said := fmt.Sprintf("%s: %s: %s", l.what, what, line)
	if err != nil {
		said += fmt.Sprintf(" %q", err.Error())
	}
	if strings.Contains(said, "res_") {
		l.exact = false
	}
	said = previews.ReplaceAllString(plainly(said), "$1")
	if !l.exact {
		said = counts.ReplaceAllString(said, "")
	}
	l.seen = append(l.seen, said)
}

// message notes what the server sends during a call.
func (l *listener) message(method string, params any) {
	line, _ := json.Marshal(params)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, plainly(method+": "+string(line)))
}

// plainly returns a text without what differs from run to run.
func plainly(text string) string {
	for _, d := range differs {
		text = d.ReplaceAllString(text, "")
	}
	return text
}

// previews are what follows the size of a preview. How much of a text fits depends on the handle.
var previews = regexp.MustCompile(`(\[Folded [\w ]+: [0-9,]+ tokens)([^"\\]|\\.)*`)

// counts are numbers of tokens that depend on ids.
var counts = regexp.MustCompile(`(budget_used\\*":|folded, |tokens_used\\*":|has )\d+`)

// alike are the methods of which the two mounts make the same records. They start and list differently.
var alike = []string{
	"tools/call", "prompts/get", "resources/read", "completion/complete", "sampling/createMessage", "elicitation/create", "roots/list",
	"notifications/progress", "notifications/message", "resources/subscribe", "resources/unsubscribe",
}

// outlines returns the records of what a client and a server said to each other, without ids and times.
func outlines(t *testing.T, state string) (lines []string) {
	t.Helper()
	for rec := range scan(t, state, query.Filter{}) {
		a := rec.AuditOrEmpty()
		_, method, _ := strings.Cut(rec.Kind, ":")
		if !slices.Contains(alike, method) || a.Server == "" {
			continue
		}
		line, _ := json.Marshal(map[string]any{
			"kind": rec.Kind, "from": strings.Split(rec.From, "#")[0], "branch": rec.Context != "", "tool": a.Tool, "for": a.ForTool, "rung": a.Source, "decision": a.Decision,
			"scrub": a.Scrub, "folded": a.Fold != nil, "error": a.IsError, "over": a.OverBudget, "team": a.Team, "principal": a.Principal, "era": a.Revision,
			"tokens": cmp.Or(a.Tokens, &trace.Tokens{}).Out, "in": cmp.Or(a.Tokens, &trace.Tokens{}).In,
		})
		lines = append(lines, string(line))
	}
	slices.Sort(lines) // what happens at the same time may be recorded in any order
	return lines
}
