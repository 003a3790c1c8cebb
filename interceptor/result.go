package interceptor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Result is the response to a request. It is not changed once a layer has seen it.
type Result struct {
	// Body is the JSON-RPC result, Error the JSON-RPC error object. One of them is set.
	Body, Error json.RawMessage
	// Extra are the members beside the two that foldgate does not know, each after a comma.
	Extra []byte

	tokens  int // of TokenMeter.Result, once counted
	counted bool
}

// Failed reports whether the result is an error object, or a tool's with isError.
func (r *Result) Failed() bool {
	failed, _ := rawjson.Get(r.Body, "isError")
	return r.Error != nil || string(failed) == "true"
}

// ToolResult returns a tool result with the same compact JSON as text and as structured content,
// because hosts show one of the two. typed adds the resultType of the modern era.
func ToolResult(body json.RawMessage, isError, typed bool) json.RawMessage {
	out := append(append(contentOf(textBlock(string(body))), `,"structuredContent":`...), body...)
	if isError {
		out = append(out, `,"isError":true`...)
	}
	if typed {
		out = append(out, `,"resultType":"complete"`...)
	}
	return append(out, '}')
}

// interim reports whether the result is not a tool's answer yet: it asks for input, or is a task
// without a result. A program needs it as it is.
func (r *Result) interim() bool {
	kind, _ := rawjson.GetString(r.Body, "resultType")
	_, at := inTask(r.Body)
	return kind != "" && kind != "complete" || at == nil && !has(r.Body, "content") && (has(r.Body, "task") || has(r.Body, "taskId"))
}

func has(body []byte, name string) bool { _, ok := rawjson.Get(body, name); return ok }

// Text returns the text of a tool's result that a model reads. structured is the structured
// content as JSON, "" if the text says the same.
func (r *Result) Text() (text, structured string) {
	if r.Error != nil {
		return r.errorText(), ""
	}
	p := split(r)
	return p.text, string(p.structured)
}

func (r *Result) errorText() string {
	text, _ := rawjson.GetString(r.Error, "message")
	return text
}

// flatText returns any result as one text, for results that are cut: the larger one of its blocks
// and its structured content. Blocks that are not text are named or shown as JSON.
func flatText(r *Result) string {
	if r.Error != nil {
		return r.errorText()
	}
	var lines []string
	body, _ := inTask(r.Body)
	for _, key := range []string{"content", "contents", "messages"} {
		list, _ := rawjson.Get(body, key)
		for v := range rawjson.Elements(list) {
			if inner, ok := rawjson.Get(v, "resource"); ok {
				v = inner
			}
			text, ok := rawjson.GetString(v, "text")
			if kind, _ := rawjson.GetString(v, "type"); !ok && (kind == "image" || kind == "audio") {
				text = "[" + kind + " left out]"
			} else if !ok {
				text = string(rawjson.Compact(v))
			}
			if text != "" || len(lines) > 0 {
				lines = append(lines, text)
			}
		}
	}
	text := strings.Join(lines, "\n")
	if structured, _ := rawjson.Get(body, "structuredContent"); len(structured) > len(text) {
		return string(rawjson.Compact(structured))
	}
	return text
}

// parts are the parts of a tool's result that Fold tells apart.
type parts struct {
	body  []byte
	at    []string // the place of the tool's result in body
	fault bool     // body is an error object
	// text is for a model to read: the text blocks and embedded texts, one after the other. If they
	// are a mere caption, it is the structured content.
	text string
	// kept is an array of the blocks that are delivered as they are: images, audio, links, a
	// workflow's handle, a caption.
	kept       []byte
	structured []byte // compact; nil if text says the same
}

const caption = 600 // bytes of the largest text that is delivered whole beside a preview

func split(r *Result) parts {
	if r.Error != nil {
		p := parts{body: r.Error, fault: true, text: r.errorText(), kept: []byte("[]")}
		if data, ok := rawjson.Get(r.Error, "data"); ok {
			p.text += "\n" + string(rawjson.Compact(data))
		}
		return p
	}
	var text strings.Builder
	var kept [][]byte
	body, at := inTask(r.Body)
	content, _ := rawjson.Get(body, "content")
	for b := range rawjson.Elements(content) {
		t, ok := blockText(b)
		switch {
		case !ok:
			kept = append(kept, b)
		case t != "":
			if text.Len() > 0 && !strings.HasSuffix(text.String(), "\n") {
				text.WriteByte('\n')
			}
			text.WriteString(t)
		}
	}
	p := parts{body: r.Body, at: at, text: text.String()}
	if s, ok := rawjson.Get(body, "structuredContent"); ok && rawjson.KindOf(s) != rawjson.Null {
		if s = rawjson.Compact(s); !bytes.Equal(s, rawjson.Compact([]byte(p.text))) {
			p.structured = s
		}
	}
	if p.structured != nil && len(p.text) <= caption && len(p.text) < len(p.structured) {
		if p.text != "" {
			kept = append(kept, textBlock(p.text))
		}
		p.text, p.structured = string(p.structured), nil
	}
	p.kept = arrayOf(kept)
	if rest, named := unnamed(r.Body); rest != nil {
		p.text, p.body = strings.TrimPrefix(p.text+"\n"+string(rest), "\n"), named
	}
	return p
}

// inTask returns the tool's result in the body of a result, and its place: that of a task holds it.
func inTask(body []byte) (result []byte, at []string) {
	inner, _ := rawjson.Get(body, "result")
	if rawjson.KindOf(inner) != rawjson.Object || has(body, "content") || has(body, "structuredContent") {
		return body, nil
	}
	return inner, []string{"result"}
}

// unnamed takes out of a result what no revision of the protocol names there, or not in this form.
// rest is nil if it is no more than a caption.
func unnamed(body []byte) (rest, named []byte) {
	if rawjson.KindOf(body) != rawjson.Object {
		return rawjson.Compact(body), []byte("{}")
	}
	_, at := inTask(body)
	isNamed := func(m rawjson.Member) bool {
		switch {
		case m.Is("content"):
			return rawjson.KindOf(m.Value) == rawjson.Array
		case m.Is("result"):
			return at != nil
		}
		return m.Is("structuredContent") || len(m.Value) <= freeBytes && free[m.Name()]
	}
	if rest = rawjson.DeleteFunc(body, isNamed); len(rest) <= caption {
		return nil, body
	}
	named = rawjson.DeleteFunc(body, func(m rawjson.Member) bool { return !isNamed(m) })
	if id, ok := rawjson.Get(body, "_meta", MetaContextID); ok && len(id) <= freeBytes {
		named = rawjson.Set(named, id, "_meta", MetaContextID)
	}
	return rest, named
}

// blockText returns the text of a content block. ok is false if the block is delivered as it is.
// One of a form that is not known, or with more beside its text than text, is its own text as JSON.
func blockText(b []byte) (text string, ok bool) {
	kind, _ := rawjson.GetString(b, "type")
	lit, ok := rawjson.Get(b, "text")
	if kind == "resource" {
		lit, ok = rawjson.Get(b, "resource", "text")
	}
	_, blob := rawjson.Get(b, "resource", "blob")
	ok = ok && (kind == "text" || kind == "resource") && rawjson.KindOf(lit) == rawjson.String
	switch {
	case kind == "image", kind == "audio", isHandle(b), !ok && (blob || len(b) <= caption):
		return "", false
	case !ok, blob, len(b)-len(lit) > max(caption, len(lit)):
		return string(rawjson.Compact(b)), true
	case kind == "resource":
		uri, _ := rawjson.GetString(b, "resource", "uri")
		return fmt.Sprintf("[resource %s]\n%s", uri, rawjson.Unquote(lit)), true
	}
	return rawjson.Unquote(lit), true
}

const maxHandleBlock = 512 // bytes; a larger block is no handle

// isHandle reports whether a content block carries a workflow's handle. Fold leaves it in place,
// because the next call needs it.
func isHandle(block []byte) bool {
	_, marked := rawjson.Get(block, "_meta", MetaContextID)
	return marked && len(block) <= maxHandleBlock
}

// contentOf returns a tool result without the closing brace.
func contentOf(blocks []byte) []byte {
	return append(append([]byte(`{"content":[`), blocks...), ']')
}

func textBlock(text string) []byte {
	return append(rawjson.AppendQuote([]byte(`{"type":"text","text":`), text), '}')
}

func arrayOf(values [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(values, []byte{','})...), ']')
}

// appendMembers closes the object out after the members of body with these names.
func appendMembers(out []byte, body json.RawMessage, names ...string) []byte {
	for _, name := range names {
		if v, ok := rawjson.Get(body, name); ok {
			out = append(append(out, `,"`+name+`":`...), v...)
		}
	}
	return append(out, '}')
}
