package llmstub

import "encoding/json"

// chat is OpenAI's chat completions interface.
type chat struct{}

func (chat) path() string { return "chat/completions" }

func (chat) read(body []byte) (Request, error) {
	var in struct {
		Model    string
		Stream   bool
		Tools    []struct{ Function struct{ Name string } }
		Messages json.RawMessage
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Request{}, err
	}
	var list []struct {
		Role       string
		Content    text
		ToolCallID string `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	if err := json.Unmarshal(in.Messages, &list); err != nil {
		return Request{}, err
	}
	q := Request{Model: in.Model, Streamed: in.Stream, Context: oneLine(in.Messages)}
	for _, t := range in.Tools {
		q.Tools = append(q.Tools, t.Function.Name)
	}
	for _, m := range list {
		out := Message{Role: m.Role, Text: string(m.Content), CallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			out.Calls = append(out.Calls, Call{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		if m.Role == "system" {
			q.System += out.Text
		}
		q.Messages = append(q.Messages, out)
	}
	return q, nil
}

func (chat) write(w *stream, id string, reply Reply) {
	chunk := func(delta object, finish any) {
		w.event("", object{"id": id, "object": "chat.completion.chunk", "created": 1, "model": "stub",
			"choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}}})
	}
	chunk(object{"role": "assistant", "content": ""}, nil)
	if reply.Text != "" {
		for _, half := range halves(reply.Text) {
			chunk(object{"content": half}, nil)
		}
	}
	finish := "stop"
	for i, c := range reply.Calls {
		finish = "tool_calls"
		chunk(object{"tool_calls": []any{object{"index": i, "id": c.ID, "type": "function",
			"function": object{"name": c.Name, "arguments": ""}}}}, nil)
		for _, half := range halves(c.Arguments) {
			chunk(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": half}}}}, nil)
		}
	}
	chunk(object{}, finish)
	w.event("", object{"id": id, "object": "chat.completion.chunk", "created": 1, "model": "stub", "choices": []any{},
		"usage": object{"prompt_tokens": reply.Input, "completion_tokens": reply.Output, "total_tokens": reply.Input + reply.Output}})
	w.line("", "[DONE]")
}
