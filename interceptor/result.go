package interceptor

import (
	"bytes"
	"cmp"
	"encoding/json"
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

// value returns the result or the error object.
func (r *Result) value() json.RawMessage {
	if r.Error != nil {
		return r.Error
	}
	return r.Body
}

// with returns r with another result or error object, and other members beside it.
func (r *Result) with(value json.RawMessage, extra []byte) *Result {
	if r.Error != nil {
		return &Result{Error: value, Extra: extra}
	}
	return &Result{Body: value, Extra: extra}
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

// opaque reports whether a program needs the result as it is: it asks for input, or is of a kind that
// foldgate does not know, without anything that hosts show to a model.
func (r *Result) opaque() bool {
	kind, _ := rawjson.GetString(r.Body, "resultType")
	return kind != "" && kind != "complete" && kind != "task" && len(kind) <= freeBytes && !has(r.Body, "content") && !has(r.Body, "structuredContent")
}

// state returns what the host must give back to the server as it is, nil if the result asks for no input.
func (r *Result) state() []byte {
	state, _ := rawjson.Get(r.Body, "requestState")
	return state
}

func has(body []byte, name string) bool { _, ok := rawjson.Get(body, name); return ok }

// Text returns the text of a tool's result that a model reads. structured is the structured
// content as JSON, "" if the text says the same.
func (r *Result) Text() (text, structured string) {
	if r.Error != nil {
		text, _ = rawjson.GetString(r.Error, "message")
		return text, ""
	}
	p := split(r, false)
	if notice, ok := rawjson.GetString(p.notice, "text"); ok {
		return notice + "\n" + p.text, string(p.structured)
	}
	return p.text, string(p.structured)
}

// Fault returns in words why a tool's result has failed.
func (r *Result) Fault() string {
	text, structured := r.Text()
	return cmp.Or(strings.TrimSpace(text), structured, "the tool answered with an error and no text")
}

// parts are the parts of a result that is folded or cut.
type parts struct {
	left  []byte   // what is delivered as it is, of a result or an error object
	extra []byte   // of the members beside it, each after a comma
	at    []string // the place of the preview in left
	fault bool     // left is an error object
	// text is for a model to read: texts of blocks, the message and data of an error, and what else may
	// not stay. If the texts are a mere caption, it is the structured content.
	text       string
	kept       [][]byte // blocks beside the preview: images, audio, links, a workflow's handle, a caption
	notice     []byte   // the block of inspect that stands before the text; nil for none
	structured []byte   // compact; nil if text says the same
}

const (
	caption   = 600     // bytes of the largest text beside a preview, and of all members that no revision names
	linkBytes = 4 << 10 // of the blocks beside a preview that are neither text nor media
)

// split takes a result apart, to fold or to cut it. Beside a text that is cut, nothing stays but what
// is free, and a workflow's handle.
func split(r *Result, cut bool) parts {
	p, s, body, rest := parts{at: place(r.Body), fault: r.Error != nil}, splitter{cut: cut, free: 4 * freeBytes}, r.value(), []byte(nil)
	if p.fault {
		p.at = []string{"message"}
	}
	if !cut {
		s.room, s.links = caption, linkBytes
	}
	if rawjson.KindOf(body) == rawjson.Object {
		p.left, rest = s.object(body, p.at)
	} else {
		p.left, rest = []byte("{}"), rawjson.Compact(body)
	}
	if code, _ := rawjson.Get(body, "code"); p.fault && rawjson.KindOf(code) != rawjson.Number {
		p.left = rawjson.Set(p.left, []byte("-32603"), "code")
	}
	p.text, p.kept, p.notice = s.text.String(), s.kept, s.notice
	if p.structured = s.structured; bytes.Equal(p.structured, rawjson.Compact([]byte(p.text))) {
		p.structured = nil
	}
	var beside []byte
	if len(r.Extra) > 0 {
		var stays []byte
		stays, beside = s.object(objectOf(r.Extra), nil)
		p.extra = extraOf(stays)
	}
	if cut {
		return p
	}
	if p.structured != nil && len(p.text) <= caption && len(p.text) < len(p.structured) {
		if p.text != "" {
			p.kept = append(p.kept, textBlock(p.text))
		}
		p.text, p.structured = string(p.structured), nil
	}
	for _, more := range [][]byte{rest, beside} {
		if more != nil {
			p.text = strings.TrimPrefix(p.text+"\n"+string(more), "\n")
		}
	}
	return p
}

// place returns the place of a preview: the content of the tool's result, which may be in a task;
// the message of a task's error; the message of a task with neither.
func place(body []byte) (at []string) {
	if has(body, "content") || has(body, "structuredContent") {
		return []string{"content"}
	}
	if task, _ := rawjson.Get(body, "task"); rawjson.KindOf(task) == rawjson.Object {
		at, body = []string{"task"}, task
	}
	result, _ := rawjson.Get(body, "result")
	fault, _ := rawjson.Get(body, "error")
	switch {
	case rawjson.KindOf(result) == rawjson.Object:
		return append(at, "result", "content")
	case !has(body, "taskId"):
		return []string{"content"}
	case rawjson.KindOf(fault) == rawjson.Object:
		return append(at, "error", "message")
	}
	return append(at, "statusMessage")
}

// splitter collects the parts of a result.
type splitter struct {
	cut               bool
	handle            bool // is among kept
	media             bool // the object is a block with data, or its resource
	depth             int
	room, links, free int // bytes that may still stay: of unnamed members, of other blocks, of free members
	text              strings.Builder
	kept              [][]byte
	notice            []byte
	structured        []byte
}

// object divides an object. It reads what stands at the place at. left has the members that stay, and
// rest the others, nil if there are none.
func (s *splitter) object(v []byte, at []string) (left, rest []byte) {
	left = []byte{'{'}
	for m := range rawjson.Members(v) {
		here, inner := len(at) == 1, []string(nil)
		if len(at) > 1 && m.Is(at[0]) {
			inner = at[1:]
		}
		open := inner != nil || s.depth < maxNested && (m.Is("_meta") || s.media && m.Is("resource"))
		switch {
		case here && m.Is(at[0]):
			s.read(m.Value, at[0] == "content")
		case here && at[0] == "message" && m.Is("data"):
			s.add(string(rawjson.Compact(m.Value)))
		case here && at[0] == "content" && m.Is("structuredContent"):
			if rawjson.KindOf(m.Value) != rawjson.Null {
				s.structured = rawjson.Compact(m.Value)
			}
		case open && rawjson.KindOf(m.Value) == rawjson.Object:
			s.depth++
			l, r := s.object(m.Value, inner)
			s.depth--
			if left = member(left, m.Key, l); r != nil {
				rest = member(rest, m.Key, r)
			}
		case s.stays(m):
			left = member(left, m.Key, m.Value)
		default:
			rest = member(rest, m.Key, m.Value)
		}
	}
	if rest != nil {
		rest = append(rest, '}')
	}
	return append(left, '}'), rest
}

// member appends a member to an object without its closing brace.
func member(object, key, value []byte) []byte {
	if len(object) == 0 {
		object = []byte{'{'}
	}
	if len(object) > 1 {
		object = append(object, ',')
	}
	return append(append(append(object, key...), ':'), value...)
}

// stays reports whether a member stays: programs need it, or it is small.
func (s *splitter) stays(m rawjson.Member) bool {
	if s.media && rawjson.KindOf(m.Value) == rawjson.String {
		switch name := m.Name(); {
		case name == "data", name == "blob", len(m.Value) <= linkBytes && (name == "type" || name == "uri" || name == "mimeType"):
			return true
		}
	}
	n, room := len(m.Key)+len(m.Value), &s.room
	if n <= freeBytes && free[m.Name()] {
		room = &s.free
	}
	if n > *room {
		return false
	}
	*room -= n
	return true
}

// read takes a text, or a list of blocks.
func (s *splitter) read(v []byte, blocks bool) {
	switch kind := rawjson.KindOf(v); {
	case blocks && kind == rawjson.Array:
		for b := range rawjson.Elements(v) {
			s.read(b, rawjson.KindOf(b) == rawjson.Object)
		}
	case blocks && kind == rawjson.Object:
		s.block(v)
	case kind == rawjson.String:
		s.add(rawjson.Unquote(v))
	default:
		s.add(string(rawjson.Compact(v)))
	}
}

// block takes the text of a content block, or keeps the block. A block of a form that is not known, or
// with more beside its text than text, is its own text as JSON.
func (s *splitter) block(b []byte) {
	kind, _ := rawjson.GetString(b, "type")
	lit, ok := rawjson.Get(b, "text")
	if kind == "resource" {
		lit, ok = rawjson.Get(b, "resource", "text")
	}
	_, blob := rawjson.Get(b, "resource", "blob")
	media := kind == "image" || kind == "audio" || blob && !ok
	ok = ok && !blob && (kind == "text" || kind == "resource") && rawjson.KindOf(lit) == rawjson.String && len(b)-len(lit) <= max(caption, len(lit))
	switch {
	case marked(b, metaNotice) && s.notice == nil:
		s.notice = b
	case marked(b, MetaContextID) && !s.handle:
		s.kept, s.handle = append(s.kept, b), true
	case ok && kind == "resource":
		uri, _ := rawjson.GetString(b, "resource", "uri")
		s.add("[resource " + uri + "]\n" + rawjson.Unquote(lit))
	case ok:
		s.add(rawjson.Unquote(lit))
	case media && s.cut:
		s.add("[" + kind + " left out]")
	case media:
		s.media = true
		left, rest := s.object(b, nil)
		s.kept, s.media = append(s.kept, left), false
		s.add(string(rest))
	case len(b) <= s.links:
		s.links -= len(b)
		s.kept = append(s.kept, b)
	default:
		s.add(string(rawjson.Compact(b)))
	}
}

// add appends a text, on a line of its own.
func (s *splitter) add(text string) {
	if text != "" && s.text.Len() > 0 && !strings.HasSuffix(s.text.String(), "\n") {
		s.text.WriteByte('\n')
	}
	s.text.WriteString(text)
}

const maxMarked = 512 // bytes of the largest block of foldgate's own

// marked reports whether a key of _meta marks a content block as foldgate's own: the notice of inspect, or
// a workflow's handle. Fold leaves these in place; the next call needs the handle.
func marked(block []byte, key string) bool {
	_, ok := rawjson.Get(block, "_meta", key)
	return ok && len(block) <= maxMarked
}

// contentOf returns a tool result without the closing brace.
func contentOf(blocks []byte) []byte {
	return append(append([]byte(`{"content":[`), blocks...), ']')
}

// objectOf returns an object of members that stand beside params or a result, each after a comma.
func objectOf(extra []byte) []byte { return append(append([]byte{'{'}, extra[1:]...), '}') }

// extraOf returns the members of an object as they stand beside params or a result, nil if there are none.
func extraOf(object []byte) []byte {
	if len(object) <= len("{}") {
		return nil
	}
	return append([]byte{','}, object[1:len(object)-1]...)
}

func textBlock(text string) []byte {
	return append(rawjson.AppendQuote([]byte(`{"type":"text","text":`), text), '}')
}

func arrayOf(values [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(values, []byte{','})...), ']')
}
