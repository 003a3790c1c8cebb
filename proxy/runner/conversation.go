package runner

import (
	"context"
	"encoding/json"
	"strings"
)

// Model is an endpoint of a language model.
type Model interface {
	// Turn sends a conversation and returns the model's next message. It repeats a request that
	// failed for a passing reason. The error says why there is no answer, without the endpoint's key.
	Turn(ctx context.Context, r *Request) (Reply, error)
}

// Request is one request to a model. Between the turns of a run only Messages grows and Only changes.
type Request struct {
	System    string
	Tools     []Tool
	Messages  []Message
	MaxTokens int    // of the answer
	Only      string // the name of the one tool that the model has to call, "" for its choice
}

// Tool is a definition of a tool as the model gets it.
type Tool struct {
	Name, Description string
	Schema            json.RawMessage // a JSON object
}

// Message is a message of a conversation, in the terms of MCP's sampling. Role is user or assistant.
type Message struct {
	Role    string  `json:"role"`
	Content []Block `json:"content"`
}

// The types of a [Block].
const (
	Text    = "text"        // Text
	ToolUse = "tool_use"    // ID, Name, Input: a call that the model wants
	Result  = "tool_result" // ToolUseID, Content, IsError: its answer
)

// Block is a content block. Its type says which fields it has.
type Block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"` // as the model wrote it: it may not be JSON
	ToolUseID string          `json:"toolUseId,omitempty"`
	Content   []Block         `json:"content,omitempty"`
	IsError   bool            `json:"isError,omitempty"`
}

// TextBlock returns a block with a text.
func TextBlock(text string) Block { return Block{Type: Text, Text: text} }

// Answer returns the answer to a call.
func (b Block) Answer(text string, isError bool) Block {
	return Block{Type: Result, ToolUseID: b.ID, Content: []Block{TextBlock(text)}, IsError: isError}
}

// text returns the texts of a message, a line each.
func (m Message) text() string {
	var texts []string
	for _, b := range m.Content {
		if b.Type == Text && b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// Reply is the answer to a [Request].
type Reply struct {
	Message Message
	Stop    string // why the model stopped, in the endpoint's words
	Usage   Usage
}

// Usage is what an endpoint says a request cost, in its own tokens. It is zero if the endpoint does not say.
type Usage struct {
	Input  int // cached ones included
	Output int
	Cached int
}
