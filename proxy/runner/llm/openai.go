package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/runner"
)

// chat asks by OpenAI's chat completions.
type chat struct {
	config.LLM
	service openai.ChatCompletionService
}

func newOpenAI(c config.LLM, client *http.Client) *chat {
	// Not NewClient, which reads the environment.
	return &chat{c, openai.NewChatCompletionService(option.WithBaseURL(c.URL), option.WithAPIKey(string(c.Key)),
		option.WithHTTPClient(client), option.WithMaxRetries(maxRetries), option.WithMiddleware(bounded))}
}

// Turn implements [runner.Model].
func (m *chat) Turn(ctx context.Context, r *runner.Request) (runner.Reply, error) {
	params := openai.ChatCompletionNewParams{
		Model: m.Model, Messages: chatMessages(r), MaxCompletionTokens: openai.Int(int64(r.MaxTokens)),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	for _, t := range r.Tools {
		f := shared.FunctionDefinitionParam{Name: t.Name, Description: openai.String(t.Description)}
		if err := json.Unmarshal(t.Schema, &f.Parameters); err != nil {
			return runner.Reply{}, err
		}
		params.Tools = append(params.Tools, openai.ChatCompletionFunctionTool(f))
	}
	if r.Only != "" {
		params.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: r.Only})
	}
	stream := m.service.NewStreaming(ctx, params)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		if !all.AddChunk(stream.Current()) {
			return runner.Reply{}, errors.New("the stream of the answer does not fit together")
		}
	}
	if err := stream.Err(); err != nil {
		if status, ok := errors.AsType[*openai.Error](err); ok {
			return runner.Reply{}, refused(status.StatusCode, clean(m.Key, status.Message))
		}
		return runner.Reply{}, err
	}
	if len(all.Choices) == 0 || all.Choices[0].FinishReason == "" {
		return runner.Reply{}, errCut
	}
	choice := all.Choices[0]
	reply := runner.Reply{Message: runner.Message{Role: "assistant"}, Stop: choice.FinishReason, Usage: runner.Usage{
		Input: int(all.Usage.PromptTokens), Output: int(all.Usage.CompletionTokens), Cached: int(all.Usage.PromptTokensDetails.CachedTokens),
	}}
	if text := choice.Message.Content + choice.Message.Refusal; text != "" {
		reply.Message.Content = append(reply.Message.Content, runner.TextBlock(text))
	}
	for _, c := range choice.Message.ToolCalls {
		if c.ID == "" && c.Function.Name == "" { // a gap in the indexes
			continue
		}
		reply.Message.Content = append(reply.Message.Content, runner.Block{Type: runner.ToolUse, ID: c.ID, Name: c.Function.Name, Input: json.RawMessage(c.Function.Arguments)})
	}
	return reply, nil
}

// chatMessages writes a conversation as chat completions do: each answer to a call is a message.
func chatMessages(r *runner.Request) []openai.ChatCompletionMessageParamUnion {
	out := []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(r.System)}
	for _, msg := range r.Messages {
		said, told := openai.ChatCompletionAssistantMessageParam{}, []string(nil)
		for _, b := range msg.Content {
			switch {
			case b.Type == runner.Result:
				out = append(out, openai.ToolMessage(b.Content[0].Text, b.ToolUseID))
			case b.Type == runner.ToolUse:
				said.ToolCalls = append(said.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID: b.ID, Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: b.Name, Arguments: string(b.Input)},
				}})
			case msg.Role == "user":
				told = append(told, b.Text)
			default:
				said.Content.OfString = openai.String(b.Text)
			}
		}
		if told != nil { // one message: some templates of models want turns to alternate
			out = append(out, openai.UserMessage(strings.Join(told, "\n")))
		}
		if msg.Role == "assistant" {
			out = append(out, openai.ChatCompletionMessageParamUnion{OfAssistant: &said})
		}
	}
	return out
}
