package llmstub

import (
	"encoding/json"
	"strconv"
)

// responses is OpenAI's Responses interface, for hosts that send their whole
// context with each request.
type responses struct{}

func (responses) path() string { return "responses" }

func (responses) read(body []byte) (Request, error) {
	var in struct {
		Model        string
		Stream       bool
		Instructions string
		Input        json.RawMessage
		Tools        []struct {
			Name, Type string
			Tools      []struct{ Name string }
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Request{}, err
	}
	q := Request{Model: in.Model, System: in.Instructions, Streamed: in.Stream, Context: oneLine(in.Input)}
	for _, t := range in.Tools {
		q.Tools = append(q.Tools, t.Name)
		for _, inner := range t.Tools {
			q.Tools = append(q.Tools, t.Name+"/"+inner.Name)
		}
	}
	var list []struct {
		Type, Role, Name, Namespace, Arguments, Input string
		Content, Output                               text
		CallID                                        string `json:"call_id"`
	}
	if err := json.Unmarshal(in.Input, &list); err != nil {
		return Request{}, err
	}
	for _, m := range list {
		switch m.Type {
		case "", "message":
			role := m.Role
			if role == "developer" {
				role = "system"
			}
			q.Messages = append(q.Messages, Message{Role: role, Text: string(m.Content)})
		case "function_call", "custom_tool_call":
			c := Call{ID: m.CallID, Name: m.Name, Namespace: m.Namespace, Arguments: m.Arguments, Input: m.Input}
			q.Messages = append(q.Messages, Message{Role: "assistant", Calls: []Call{c}})
		case "function_call_output", "custom_tool_call_output":
			q.Messages = append(q.Messages, Message{Role: "tool", Text: string(m.Output), CallID: m.CallID})
		}
	}
	return q, nil
}

func (responses) write(w *stream, id string, reply Reply) {
	sequence := 0
	event := func(name string, data object) {
		data["type"], data["sequence_number"] = name, sequence
		sequence++
		w.event(name, data)
	}
	response := func(status string, output []any, usage any) object {
		return object{"id": id, "object": "response", "created_at": 1, "model": "stub", "status": status, "output": output,
			"error": nil, "incomplete_details": nil, "usage": usage}
	}
	event("response.created", object{"response": response("in_progress", []any{}, nil)})
	var output []any
	if reply.Text != "" {
		item := id + "_text"
		message := func(content ...any) object {
			return object{"type": "message", "id": item, "role": "assistant", "status": "completed", "content": append([]any{}, content...)}
		}
		part := func(text string) object {
			return object{"type": "output_text", "text": text, "annotations": []any{}}
		}
		event("response.output_item.added", object{"output_index": 0, "item": message()})
		event("response.content_part.added", object{"item_id": item, "output_index": 0, "content_index": 0, "part": part("")})
		for _, half := range halves(reply.Text) {
			event("response.output_text.delta", object{"item_id": item, "output_index": 0, "content_index": 0, "delta": half})
		}
		event("response.output_text.done", object{"item_id": item, "output_index": 0, "content_index": 0, "text": reply.Text})
		event("response.content_part.done", object{"item_id": item, "output_index": 0, "content_index": 0, "part": part(reply.Text)})
		event("response.output_item.done", object{"output_index": 0, "item": message(part(reply.Text))})
		output = append(output, message(part(reply.Text)))
	}
	for _, c := range reply.Calls {
		n, item := len(output), id+"_call_"+strconv.Itoa(len(output))
		call := func(written string) object {
			o := object{"type": "function_call", "id": item, "call_id": c.ID, "name": c.Name, "arguments": written, "status": "completed"}
			if c.Input != "" {
				o = object{"type": "custom_tool_call", "id": item, "call_id": c.ID, "name": c.Name, "input": written, "status": "completed"}
			}
			if c.Namespace != "" {
				o["namespace"] = c.Namespace
			}
			return o
		}
		name, field, written := "response.function_call_arguments", "arguments", c.Arguments
		if c.Input != "" {
			name, field, written = "response.custom_tool_call_input", "input", c.Input
		}
		event("response.output_item.added", object{"output_index": n, "item": call("")})
		for _, half := range halves(written) {
			event(name+".delta", object{"item_id": item, "output_index": n, "delta": half})
		}
		event(name+".done", object{"item_id": item, "output_index": n, field: written})
		event("response.output_item.done", object{"output_index": n, "item": call(written)})
		output = append(output, call(written))
	}
	event("response.completed", object{"response": response("completed", output, object{
		"input_tokens": 1, "input_tokens_details": object{"cached_tokens": 0},
		"output_tokens": 1, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 2})})
}
