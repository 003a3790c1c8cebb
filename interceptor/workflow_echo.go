package interceptor

import (
	"bytes"
	"encoding/json"

	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// echo puts the handle where the host and its model can find it. Hosts that see
// an output schema show structured content only, the others text only.
func (f *WorkflowStep) echo(res *Result, err error) (*Result, error) {
	id := f.step.HostID()
	if id == "" || f.Echo == (Echo{Argument: f.Echo.Argument}) {
		return res, err
	}
	if r, ok := err.(*Refusal); ok { // not one inside: its text may be withheld
		shown := *r
		shown.ContextID = id
		return nil, &shown
	}
	if err != nil || res.Error != nil || rawjson.KindOf(res.Body) != rawjson.Object {
		return res, err
	}
	body := res.Body
	if f.Echo.Key != "" {
		body = f.echoStructured(body, id)
	}
	kind, _ := rawjson.GetString(body, "resultType")
	failed, _ := rawjson.Get(body, "isError")
	announce := f.Rule.Role == workflow.RoleOpen || f.Rule.Role == workflow.RoleLink || string(failed) == "true"
	if f.Echo.Content && announce && kind != "input_required" {
		body = appendHandle(body, f.Echo.Argument, id)
	}
	if f.Echo.Meta {
		body = rawjson.Set(body, rawjson.Quote(id), "_meta", MetaContextID)
	}
	return &Result{Body: body, Extra: res.Extra}, nil
}

// echoStructured adds the handle to structured content that is an object, and
// never in place of something that the server wrote.
func (f *WorkflowStep) echoStructured(body json.RawMessage, id string) json.RawMessage {
	structured, ok := rawjson.Get(body, "structuredContent")
	if !ok || rawjson.KindOf(structured) != rawjson.Object {
		return body
	}
	if _, taken := rawjson.Get(structured, f.Echo.Key); taken {
		return body
	}
	value := rawjson.Quote(id)
	if f.Echo.Key != f.Echo.Argument {
		value = rawjson.Set([]byte(`{}`), value, f.Echo.Argument)
	}
	return rawjson.Set(body, value, "structuredContent", f.Echo.Key)
}

// handleText states facts: models refuse results that give orders.
func handleText(argument, id string) string {
	return argument + "=" + id + " — handle for this workflow. Tools that declare an optional " + argument + " parameter accept this value."
}

// maxHandleBlock bounds what passes as a handle, in bytes.
const maxHandleBlock = 512

// isHandle reports whether a block of content is the one that carries a
// workflow's handle: folding leaves it, because it is needed for the next call.
func isHandle(block []byte) bool {
	_, marked := rawjson.Get(block, "_meta", MetaContextID)
	return marked && len(block) <= maxHandleBlock
}

// takeHandle takes the block that carries the handle out of a result; nil where
// there is none.
func takeHandle(res *Result) (rest *Result, handle []byte) {
	content, _ := rawjson.Get(res.Body, "content")
	var blocks [][]byte
	rawjson.Elements(content, func(v []byte) bool {
		if handle == nil && isHandle(v) {
			handle = v
		} else {
			blocks = append(blocks, v)
		}
		return true
	})
	if handle == nil {
		return res, nil
	}
	list := append(append([]byte{'['}, bytes.Join(blocks, []byte{','})...), ']')
	return &Result{Body: rawjson.Set(res.Body, list, "content"), Extra: res.Extra}, handle
}

// contentOf is a result with one block.
func contentOf(block []byte) json.RawMessage {
	return append(append([]byte(`{"content":[`), block...), `]}`...)
}

// appendHandle adds the text block that carries the handle to a result's content.
func appendHandle(body json.RawMessage, argument, id string) json.RawMessage {
	block := append([]byte(`{"type":"text","text":`), rawjson.Quote(handleText(argument, id))...)
	block = rawjson.Set(append(block, '}'), rawjson.Quote(id), "_meta", MetaContextID)
	content, ok := rawjson.Get(body, "content")
	if ok && rawjson.KindOf(content) != rawjson.Array {
		return body
	}
	list := []byte{'['}
	rawjson.Elements(content, func(v []byte) bool {
		list = append(append(list, v...), ',')
		return true
	})
	return rawjson.Set(body, append(append(list, block...), ']'), "content")
}
