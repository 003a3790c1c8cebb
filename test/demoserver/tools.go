package main

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is one of the server's tools.
type tool struct {
	name, description string
	input             map[string]string // parameter to description
	output            map[string]any    // schema; nil for none
	run               func(ctx context.Context, args map[string]string) (*mcp.CallToolResult, error)
}

// outputSchema returns the schema as an interface that is nil without one.
func (t tool) outputSchema() any {
	if t.output == nil {
		return nil
	}
	return t.output
}

var (
	discovery  = map[string]string{"signal_spec": "Natural language description of the wanted signals"}
	activation = map[string]string{
		"signals_agent_segment_id": "Which signal to activate", "platform": "Where to activate it", "account": "Account there",
	}
	native = map[string]string{"signal_spec": "Natural language description of the wanted signals", "context_id": "Context of an earlier answer"}

	signalsSchema = strict(map[string]any{"message": text, "signals": map[string]any{"type": "array", "items": map[string]any{"type": "object"}}})
	text          = map[string]any{"type": "string"}
)

func strict(properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

var tools = []tool{
	{name: "get_signals", description: "Find audience signals", input: discovery, output: signalsSchema, run: getSignals},
	{
		name: "activate_signal", description: "Activate a signal on a platform", input: activation,
		output: strict(map[string]any{"message": text, "status": text, "decisioning_platform_segment_id": text}), run: activate,
	},
	{
		name: "check_signal_status", description: "Status of an activation", output: strict(map[string]any{"status": text}),
		input: map[string]string{"signals_agent_segment_id": "Which signal"},
		run: func(context.Context, map[string]string) (*mcp.CallToolResult, error) {
			return answer(map[string]any{"status": "deployed"})
		},
	},
	{
		name: "end_campaign", description: "End a campaign", input: map[string]string{"reason": "Why"},
		run: func(context.Context, map[string]string) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ended"}}}, nil
		},
	},
	{ // has a context of its own, in and out
		name: "get_signals_native", description: "Find audience signals", input: native,
		output: strict(map[string]any{"message": text, "context_id": text}),
		run: func(_ context.Context, args map[string]string) (*mcp.CallToolResult, error) {
			id := args["context_id"]
			if id == "" {
				id = "native-0001"
			}
			return answer(map[string]any{"message": "found", "context_id": id})
		},
	},
	{ // its output schema is a choice, so nothing can be added to it
		name: "get_signals_union", description: "Find audience signals", input: discovery,
		output: map[string]any{"type": "object", "anyOf": []any{signalsSchema, strict(map[string]any{"error": text})}}, run: getSignals,
	},
	{ // answers with text only
		name: "get_signals_text", description: "Find audience signals", input: discovery,
		run: func(ctx context.Context, args map[string]string) (*mcp.CallToolResult, error) {
			res, err := getSignals(ctx, args)
			if err == nil {
				res.StructuredContent = nil
			}
			return res, err
		},
	},
	{ // its structured content is an array
		name: "get_signals_list", description: "Find audience signals", input: discovery, output: map[string]any{"type": "array", "items": text},
		run: func(context.Context, map[string]string) (*mcp.CallToolResult, error) {
			return answer([]string{"sig_1", "sig_2"})
		},
	},
}

// getSignals finds sig_<word> for every word of the specification. "fail" is an
// error of the tool, "hang" never ends.
func getSignals(ctx context.Context, args map[string]string) (*mcp.CallToolResult, error) {
	switch args["signal_spec"] {
	case "fail":
		return failed("no such signals"), nil
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	signals := []map[string]string{}
	for _, word := range strings.Fields(args["signal_spec"]) {
		signals = append(signals, map[string]string{"signals_agent_segment_id": "sig_" + word, "name": word})
	}
	return answer(map[string]any{"message": "found", "signals": signals})
}

func activate(_ context.Context, args map[string]string) (*mcp.CallToolResult, error) {
	segment := args["signals_agent_segment_id"]
	if segment == "sig_broken" {
		return failed("this signal can't be activated"), nil
	}
	return answer(map[string]any{"message": "activation started", "status": "activating", "decisioning_platform_segment_id": args["platform"] + "_" + segment})
}
