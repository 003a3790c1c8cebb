// Command demoserver is an upstream MCP server for tests of workflows: it finds
// audience signals, activates them and tells their status, and remembers
// nothing of a conversation. It is as strict as a server can be: an argument
// that a tool does not declare fails the call.
//
//	demoserver [-record FILE]
//
// -record appends a line {"name":...,"arguments":...} for each call, as it came.
// Beside the three tools there are variants of get_signals with the schemas and
// results that workflows must leave alone; see tools.go. It speaks on stdio.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("demoserver: ")
	record := flag.String("record", "", "append every call to this file")
	flag.Parse()
	r := &recorder{}
	if *record != "" {
		f, err := os.OpenFile(*record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			log.Fatal(err)
		}
		defer f.Close()
		r.file = f
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "demoserver", Version: "1.0.0"}, nil)
	for _, t := range tools {
		s.AddTool(&mcp.Tool{Name: t.name, Description: t.description, InputSchema: object(t.input), OutputSchema: t.outputSchema()}, t.handler(r))
	}
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Print(err)
	}
}

// recorder writes the calls that arrive.
type recorder struct {
	mu   sync.Mutex
	file *os.File
}

func (r *recorder) note(name string, arguments json.RawMessage) error {
	if r.file == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := fmt.Fprintf(r.file, "{\"name\":%q,\"arguments\":%s}\n", name, arguments)
	return err
}

// handler checks the arguments as a strict server does, and runs the tool.
func (t tool) handler(r *recorder) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		raw := req.Params.Arguments
		if len(raw) == 0 {
			raw = json.RawMessage(`{}`)
		}
		if err := r.note(t.name, raw); err != nil {
			return nil, err
		}
		var args map[string]string
		if err := json.Unmarshal(raw, &args); err != nil {
			return failed("arguments: " + err.Error()), nil
		}
		for name := range args {
			if _, declared := t.input[name]; !declared {
				return failed("unexpected_keyword_argument: " + name), nil
			}
		}
		return t.run(ctx, args)
	}
}

func failed(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// answer returns a result with structured content that its text repeats, as FastMCP makes it.
func answer(structured any) (*mcp.CallToolResult, error) {
	text, err := json.Marshal(structured)
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: structured}, nil
}

// object is the JSON Schema of a strict object of strings.
func object(properties map[string]string) map[string]any {
	props := map[string]any{}
	for name, description := range properties {
		props[name] = map[string]any{"type": "string", "description": description}
	}
	return map[string]any{"type": "object", "properties": props, "additionalProperties": false}
}
