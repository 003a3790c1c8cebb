package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/wire"
)

// searchDefinitions are listed to hosts that search. The description names no tools and no servers, so
// that the list is always the same.
var searchDefinitions = []json.RawMessage{
	json.RawMessage(`{"name":"` + config.FindTools + `",` +
		`"description":"Most tools are not listed. Find them by what they do, in plain words; the answer has their input schemas. Call them with call_tool.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"query":{"type":"string","description":"Such as: create an issue on GitHub"},` +
		`"server":{"type":"string","description":"Only its tools; without query: all"},` +
		`"limit":{"type":"number","description":"Schemas in the answer; 5","minimum":1,"maximum":20},` +
		`"branch_id":{"type":"string"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`),
	json.RawMessage(`{"name":"` + config.CallTool + `",` +
		`"description":"Call a tool that find_tools found.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"name":{"type":"string"},` +
		`"arguments":{"type":"object","description":"As its inputSchema says"},` +
		`"branch_id":{"type":"string","description":"Branch to charge; from branch_create"}},"required":["name"],"additionalProperties":false},` +
		alwaysLoad + `}`),
}

// SearchDefinitions returns the definitions of find_tools and call_tool.
func SearchDefinitions() []json.RawMessage { return searchDefinitions }

// Limits of find_tools.
const (
	defaultFound = 5    // schemas in an answer
	maxQuery     = 1000 // bytes
	findTokens   = 8000 // the definitions after the first
)

// find serves find_tools. What does not fit into the budget is named without its schema.
func (t *Tools) find(ctx context.Context, r *Request) ([]byte, error) {
	var in struct {
		Query, Server string
		Limit         float64
		BranchID      string `json:"branch_id"` // Attribute has read it
	}
	c := r.Call
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.Query == "" && in.Server == "" {
		return nil, folding.Errorf(folding.ErrInvalidInput, "query is missing: say in plain words what the tool must do")
	}
	if len(in.Query) > maxQuery {
		return nil, folding.Errorf(folding.ErrInvalidInput, "query has %d bytes, more than %d: say it in a few words", len(in.Query), maxQuery)
	}
	definitions, note, err := r.FindTools(ctx, in.Query, in.Server, int(cmp.Or(in.Limit, defaultFound)))
	if err != nil {
		return nil, err
	}
	room := math.MaxInt
	if left, ok := c.Left(); ok {
		room = left - readReserve
	}
	c.Outcome.Shrink = func(budget int) *interceptor.Result {
		return &interceptor.Result{Body: plain(c, t.fit(definitions, note, budget))}
	}
	return plain(c, t.fit(definitions, note, room)), nil
}

// fit returns the answer of find_tools in about room tokens, with a definition or a name a line.
func (t *Tools) fit(definitions []json.RawMessage, note string, room int) string {
	room -= t.Counter.Count(note)
	text := ""
	for i, d := range definitions {
		n := t.Counter.CountBytes(d)
		if n > room || i > 0 && n > findTokens {
			name, _ := rawjson.Get(d, "name")
			d = fmt.Appendf(nil, `{"name":%s,"inputSchema":"left out: %d tokens; find it with limit 1"}`, name, n)
			if n = t.Counter.CountBytes(d); n > room {
				break
			}
		}
		if room -= n; i == 0 {
			room = min(room, findTokens)
		}
		text += string(d) + "\n"
	}
	return text + note
}

// Inner returns the call that a call_tool stands for. Some models write the arguments as a text.
func (t *Tools) Inner(c *interceptor.Call) (name string, args json.RawMessage, branchID string, err error) {
	var in struct {
		Name      string
		Arguments json.RawMessage
		BranchID  string `json:"branch_id"`
	}
	if text, ok := rawjson.GetString(c.Target.Arguments, "arguments"); ok && rawjson.KindOf([]byte(text)) == rawjson.Object && rawjson.Valid([]byte(text), wire.MaxDepth) {
		c.Target.Arguments = rawjson.Set(c.Target.Arguments, []byte(text), "arguments")
	}
	err = decode(c, &in)
	if kind := rawjson.KindOf(in.Arguments); len(in.Arguments) == 0 || kind == rawjson.Null {
		in.Arguments = json.RawMessage(`{}`)
	} else if kind != rawjson.Object && err == nil {
		err = folding.Errorf(folding.ErrInvalidInput, "arguments must be an object, as the inputSchema of the tool says")
	}
	switch {
	case err != nil:
	case in.Name == "":
		err = folding.Errorf(folding.ErrInvalidInput, "name is missing: give the name of a tool that find_tools found")
	case in.Name == config.CallTool:
		err = folding.Errorf(folding.ErrInvalidInput, "name: call_tool can't call itself; give the name of the tool")
	}
	if err != nil {
		err = interceptor.FoldingRefusal(err)
	}
	return in.Name, in.Arguments, in.BranchID, err
}
