package interceptor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/budget"
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

// Text returns the text of a tool's result that a model reads. structured is the structured
// content as JSON, "" if the text says the same.
func (r *Result) Text() (text, structured string) {
	if r.Error != nil {
		return r.errorText(), ""
	}
	p := splitResult(r.Body)
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
	for _, key := range []string{"content", "contents", "messages"} {
		list, _ := rawjson.Get(r.Body, key)
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
	if structured, _ := rawjson.Get(r.Body, "structuredContent"); len(structured) > len(text) {
		return string(rawjson.Compact(structured))
	}
	return text
}

// parts are the parts of a tool's result that Fold tells apart.
type parts struct {
	body []byte
	// text is for a model to read: the text blocks and embedded texts, one after the other. If they
	// are a mere caption, it is the structured content.
	text string
	// kept is an array of the blocks that are delivered as they are: images, audio, links, a
	// workflow's handle, a caption.
	kept       []byte
	structured []byte // compact; nil if text says the same
}

const caption = 600 // bytes of the largest text that is delivered whole beside a preview

func splitResult(body []byte) parts {
	var text strings.Builder
	var kept [][]byte
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
	p := parts{body: body, text: text.String()}
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
	return p
}

// blockText returns the text of a content block. ok is false if the block is delivered as it is.
func blockText(b []byte) (text string, ok bool) {
	kind, _ := rawjson.GetString(b, "type")
	switch {
	case kind == "text" && !isHandle(b):
		return rawjson.GetString(b, "text")
	case kind == "resource":
		uri, _ := rawjson.GetString(b, "resource", "uri")
		text, ok = rawjson.GetString(b, "resource", "text")
		return fmt.Sprintf("[resource %s]\n%s", uri, text), ok
	}
	return "", false
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

// TokenMeter counts the tokens of results and arguments as a model reads them. It is safe for
// concurrent use.
type TokenMeter struct {
	Counter     *budget.Counter
	ImageTokens int // an estimate for an image or audio block: model and pixels decide the real cost
}

// Arguments counts tool arguments as compact JSON.
func (tm TokenMeter) Arguments(args json.RawMessage) int {
	if len(args) == 0 {
		return 0
	}
	return tm.Counter.CountBytes(rawjson.Compact(args))
}

// Result counts a result of tools/call, resources/read or prompts/get once, for all layers: its
// content blocks or its structured content, the larger of the two, because hosts show one of
// them. An error object counts as compact JSON.
func (tm TokenMeter) Result(r *Result) int {
	if !r.counted {
		r.tokens, r.counted = tm.count(r), true
	}
	return r.tokens
}

func (tm TokenMeter) count(r *Result) int {
	if r.Error != nil {
		return tm.Counter.CountBytes(rawjson.Compact(r.Error))
	}
	blocks, structured := 0, 0
	for m := range rawjson.Members(r.Body) {
		switch {
		case m.Is("content"), m.Is("contents"):
			blocks += tm.list(m.Value)
		case m.Is("messages"):
			for msg := range rawjson.Elements(m.Value) {
				if content, ok := rawjson.Get(msg, "content"); ok {
					blocks += tm.list(content)
				}
			}
		case m.Is("structuredContent"):
			structured = tm.Counter.CountBytes(rawjson.Compact(m.Value))
		}
	}
	return max(blocks, structured)
}

// list counts content blocks: an array or a single one.
func (tm TokenMeter) list(v []byte) (n int) {
	if rawjson.KindOf(v) != rawjson.Array {
		return tm.block(v)
	}
	for b := range rawjson.Elements(v) {
		n += tm.block(b)
	}
	return n
}

// block counts one content block, or one element of a resource's contents.
func (tm TokenMeter) block(b []byte) int {
	kind, _ := rawjson.GetString(b, "type")
	switch kind {
	case "image", "audio":
		return tm.ImageTokens
	case "resource":
		if res, ok := rawjson.Get(b, "resource"); ok {
			return tm.block(res)
		}
	case "text", "": // "" is an element of a resource's contents: {uri, text | blob}
		if n, ok := tm.text(b); ok {
			return n
		}
		if blob, ok := rawjson.Get(b, "blob"); ok && kind == "" {
			if mime, _ := rawjson.GetString(b, "mimeType"); strings.HasPrefix(mime, "image/") {
				return tm.ImageTokens
			}
			return tm.Counter.CountBytes(blob)
		}
	}
	return tm.Counter.CountBytes(rawjson.Compact(b))
}

// texts are buffers for unescaped texts. Larger ones than maxTextKept are not kept.
var texts = sync.Pool{New: func() any { return new([]byte) }}

const maxTextKept = 2 << 20

// text counts the "text" of a block. ok is false if it is not a string.
func (tm TokenMeter) text(b []byte) (n int, ok bool) {
	lit, ok := rawjson.Get(b, "text")
	if !ok || rawjson.KindOf(lit) != rawjson.String {
		return 0, false
	}
	buf := texts.Get().(*[]byte)
	text := rawjson.AppendUnquote((*buf)[:0], lit)
	n = tm.Counter.CountBytes(text)
	if cap(text) <= maxTextKept {
		*buf = text
		texts.Put(buf)
	}
	return n, true
}
