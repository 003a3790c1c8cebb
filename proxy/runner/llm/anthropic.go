package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/runner"
)

// messages asks by Anthropic's Messages.
type messages struct {
	config.LLM
	service anthropic.MessageService
}

func newAnthropic(c config.LLM, client *http.Client) *messages {
	// Not NewClient, which reads the environment. The SDK's paths have the version.
	base := strings.TrimSuffix(strings.TrimSuffix(c.URL, "/"), "/v1")
	return &messages{c, anthropic.NewMessageService(option.WithBaseURL(base), option.WithAPIKey(string(c.Key)),
		option.WithHTTPClient(client), option.WithMaxRetries(maxRetries), option.WithMiddleware(bounded))}
}

// Turn implements [runner.Model].
func (m *messages) Turn(ctx context.Context, r *runner.Request) (runner.Reply, error) {
	params, err := m.params(r)
	if err != nil {
		return runner.Reply{}, err
	}
	stream := m.service.NewStreaming(ctx, params)
	defer stream.Close()
	var all anthropic.Message
	complete, inputs := false, map[int64]string{} // Accumulate drops an input that is not JSON
	for stream.Next() {
		event := stream.Current()
		if err := all.Accumulate(event); err != nil {
			return runner.Reply{}, errors.New("the stream of the answer does not fit together")
		}
		complete = complete || event.Type == "message_stop"
		if event.Type == "content_block_delta" {
			inputs[event.Index] += event.Delta.PartialJSON
		}
	}
	if err := stream.Err(); err != nil {
		if status, ok := errors.AsType[*anthropic.Error](err); ok {
			message := ""
			var body struct{ Error struct{ Message string } }
			if json.Unmarshal([]byte(status.RawJSON()), &body) == nil {
				message = body.Error.Message
			}
			return runner.Reply{}, refused(status.StatusCode, clean(m.Key, message))
		}
		return runner.Reply{}, err
	}
	if !complete {
		return runner.Reply{}, errCut
	}
	u := all.Usage
	cached := int(u.CacheReadInputTokens)
	reply := runner.Reply{Message: runner.Message{Role: "assistant"}, Stop: string(all.StopReason), Usage: runner.Usage{
		Input: int(u.InputTokens+u.CacheCreationInputTokens) + cached, Output: int(u.OutputTokens), Cached: cached,
	}}
	for i, b := range all.Content {
		if raw := inputs[int64(i)]; raw != "" {
			b.Input = json.RawMessage(raw)
		}
		switch {
		case b.Type == "text" && strings.TrimSpace(b.Text) != "":
			reply.Message.Content = append(reply.Message.Content, runner.TextBlock(b.Text))
		case b.Type == "tool_use":
			reply.Message.Content = append(reply.Message.Content, runner.Block{Type: runner.ToolUse, ID: b.ID, Name: b.Name, Input: b.Input})
		}
	}
	return reply, nil
}

// params writes a request as Messages does.
func (m *messages) params(r *runner.Request) (anthropic.MessageNewParams, error) {
	params := anthropic.MessageNewParams{
		Model: m.Model, MaxTokens: int64(r.MaxTokens), System: []anthropic.TextBlockParam{{Text: r.System}},
		CacheControl: anthropic.NewCacheControlEphemeralParam(), // of the whole conversation so far
	}
	for _, t := range r.Tools {
		tool := anthropic.ToolParam{Name: t.Name, Description: anthropic.String(t.Description)}
		if err := json.Unmarshal(t.Schema, &tool.InputSchema); err != nil {
			return params, err
		}
		params.Tools = append(params.Tools, anthropic.ToolUnionParam{OfTool: &tool})
	}
	if r.Only != "" {
		params.ToolChoice = anthropic.ToolChoiceParamOfTool(r.Only)
	}
	for _, msg := range r.Messages {
		var blocks []anthropic.ContentBlockParamUnion
		for _, b := range msg.Content {
			switch b.Type {
			case runner.Result:
				blocks = append(blocks, anthropic.NewToolResultBlock(b.ToolUseID, b.Content[0].Text, b.IsError))
			case runner.ToolUse:
				blocks = append(blocks, anthropic.NewToolUseBlock(b.ID, b.Input, b.Name))
			default:
				blocks = append(blocks, anthropic.NewTextBlock(b.Text))
			}
		}
		params.Messages = append(params.Messages, anthropic.MessageParam{Role: anthropic.MessageParamRole(msg.Role), Content: blocks})
	}
	return params, nil
}
