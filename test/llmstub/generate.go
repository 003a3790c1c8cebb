package llmstub

import "encoding/json"

// generate is Gemini's interface. Its path names the model, which must be called m.
type generate struct{}

func (generate) path() string { return "v1beta/models/m:streamGenerateContent" }

func (generate) read(body []byte) (Request, error) {
	type part struct {
		Text         string
		FunctionCall *struct {
			ID, Name string
			Args     json.RawMessage
		}
		FunctionResponse *struct {
			ID       string
			Response struct{ Output text }
		}
	}
	var in struct {
		SystemInstruction struct{ Parts []part }
		Tools             []struct{ FunctionDeclarations []struct{ Name string } }
		Contents          []struct {
			Role  string
			Parts []part
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Request{}, err
	}
	q := Request{Model: "m", Streamed: true} // the path says so
	for _, p := range in.SystemInstruction.Parts {
		q.System += p.Text
	}
	for _, t := range in.Tools {
		for _, f := range t.FunctionDeclarations {
			q.Tools = append(q.Tools, f.Name)
		}
	}
	for _, c := range in.Contents {
		out := Message{Role: c.Role}
		if c.Role == "model" {
			out.Role = "assistant"
		}
		for _, p := range c.Parts {
			out.Text += p.Text
			if f := p.FunctionCall; f != nil {
				out.Calls = append(out.Calls, Call{ID: f.ID, Name: f.Name, Arguments: string(f.Args)})
			}
			if f := p.FunctionResponse; f != nil {
				q.Messages = append(q.Messages, Message{Role: "tool", CallID: f.ID, Text: string(f.Response.Output)})
			}
		}
		if out.Text != "" || len(out.Calls) > 0 {
			q.Messages = append(q.Messages, out)
		}
	}
	var context struct{ Contents json.RawMessage }
	_ = json.Unmarshal(body, &context) // was read above
	q.Context = oneLine(context.Contents)
	return q, nil
}

func (generate) write(w *stream, id string, reply Reply) {
	chunk := func(finish any, parts ...any) {
		w.event("", object{"responseId": id, "modelVersion": "stub",
			"candidates":    []any{object{"index": 0, "content": object{"role": "model", "parts": parts}, "finishReason": finish}},
			"usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}})
	}
	if reply.Text != "" {
		for _, half := range halves(reply.Text) {
			chunk(nil, object{"text": half})
		}
	}
	for _, c := range reply.Calls {
		chunk(nil, object{"functionCall": object{"id": c.ID, "name": c.Name, "args": json.RawMessage(c.Arguments)}})
	}
	chunk("STOP", object{"text": ""})
}
