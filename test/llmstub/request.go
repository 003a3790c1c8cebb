package llmstub

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// Request is a request of a host to its model.
type Request struct {
	// API is "messages", "chat/completions", "responses" or generate's path.
	API string
	// Agent is the name of the agent that answered.
	Agent string
	// Body is the request as it came, Header the header of HTTP.
	Body   json.RawMessage
	Header http.Header
	// Model, System and Tools (names) are as the host set them. System has the instructions that
	// it sent beside the messages.
	Model, System string
	Tools         []string
	// Messages are the context, oldest first.
	Messages []Message
	// Context is the JSON of the messages, in one line. It grows from request to request.
	Context string
	// Streamed reports whether the host asked for a stream.
	Streamed bool
}

// Message is one entry of a context: a text and calls of the model, a text of the user, or the
// result of a call.
type Message struct {
	Role   string // system, user, assistant or tool
	Text   string
	Calls  []Call // of the model
	CallID string // of the call that a result answers
}

// Turns is the number of turns that the model has had.
func (r Request) Turns() int {
	n := 0
	for i, m := range r.Messages {
		// The Responses interface has one item for each part of a turn.
		if m.Role == "assistant" && (i == 0 || r.Messages[i-1].Role != "assistant") {
			n++
		}
	}
	return n
}

// First is the text of the first message that is of the given role.
func (r Request) First(role string) string {
	for _, m := range r.Messages {
		if m.Role == role {
			return m.Text
		}
	}
	return ""
}

// Results are the texts of all results, in order.
func (r Request) Results() []string {
	var out []string
	for _, m := range r.Messages {
		if m.Role == "tool" {
			out = append(out, m.Text)
		}
	}
	return out
}

// text is a string, or a list of blocks; only blocks with a text count.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		var blocks []struct{ Text string }
		if err := json.Unmarshal(b, &blocks); err != nil {
			return err
		}
		for i, block := range blocks {
			if i > 0 && *t != "" {
				*t += "\n"
			}
			*t += text(block.Text)
		}
		return nil
	}
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s != nil {
		*t = text(*s)
	}
	return nil
}

// oneLine is JSON without white space between its tokens.
func oneLine(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return string(raw)
	}
	return b.String()
}
