package llmstub

import "encoding/json"

// messages is Anthropic's Messages interface.
type messages struct{}

func (messages) path() string { return "messages" }

func (messages) read(body []byte) (Request, error) {
	var in struct {
		Model    string
		Stream   bool
		System   text
		Tools    []struct{ Name string }
		Messages json.RawMessage
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Request{}, err
	}
	var list []struct {
		Role    string
		Content json.RawMessage
	}
	if err := json.Unmarshal(in.Messages, &list); err != nil {
		return Request{}, err
	}
	q := Request{Model: in.Model, System: string(in.System), Streamed: in.Stream, Context: oneLine(in.Messages)}
	for _, t := range in.Tools {
		q.Tools = append(q.Tools, t.Name)
	}
	for _, m := range list {
		parts, err := anthropicParts(m.Role, m.Content)
		if err != nil {
			return Request{}, err
		}
		q.Messages = append(q.Messages, parts...)
	}
	return q, nil
}

// anthropicParts splits a message: a user's message carries results too.
func anthropicParts(role string, content json.RawMessage) ([]Message, error) {
	if len(content) > 0 && content[0] == '"' {
		m := Message{Role: role}
		return []Message{m.with(content)}, nil
	}
	var blocks []struct {
		Type, Text, ID, Name string
		ToolUseID            string `json:"tool_use_id"`
		Input                json.RawMessage
		Content              text
	}
	if err := json.Unmarshal(content, &blocks); err != nil {
		return nil, err
	}
	said := Message{Role: role}
	var results []Message
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if said.Text != "" {
				said.Text += "\n"
			}
			said.Text += b.Text
		case "tool_use":
			said.Calls = append(said.Calls, Call{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case "tool_result":
			results = append(results, Message{Role: "tool", Text: string(b.Content), CallID: b.ToolUseID})
		}
	}
	if said.Text == "" && said.Calls == nil && results != nil {
		return results, nil
	}
	return append(results, said), nil
}

func (m Message) with(raw json.RawMessage) Message {
	_ = json.Unmarshal(raw, &m.Text) // a JSON string, by its first byte, of a valid body
	return m
}

func (messages) write(w *stream, id string, reply Reply) {
	w.event("message_start", object{"type": "message_start", "message": object{
		"id": id, "type": "message", "role": "assistant", "model": "stub", "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": reply.Input, "output_tokens": 1}}})
	n := 0
	block := func(start object, deltas []object) {
		w.event("content_block_start", object{"type": "content_block_start", "index": n, "content_block": start})
		for _, d := range deltas {
			w.event("content_block_delta", object{"type": "content_block_delta", "index": n, "delta": d})
		}
		w.event("content_block_stop", object{"type": "content_block_stop", "index": n})
		n++
	}
	if reply.Text != "" {
		var deltas []object
		for _, half := range halves(reply.Text) {
			deltas = append(deltas, object{"type": "text_delta", "text": half})
		}
		block(object{"type": "text", "text": ""}, deltas)
	}
	stop := "end_turn"
	for _, c := range reply.Calls {
		stop = "tool_use"
		var deltas []object
		for _, half := range halves(c.Arguments) {
			deltas = append(deltas, object{"type": "input_json_delta", "partial_json": half})
		}
		block(object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": object{}}, deltas)
	}
	w.event("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": reply.Output}})
	w.event("message_stop", object{"type": "message_stop"})
}
