package interceptor

import (
	"encoding/json"
	"sync"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Gauge counts the tokens of what a host may show a model. It is safe for
// concurrent use.
type Gauge struct {
	Counter *budget.Counter
	// ImageTokens is the fixed estimate for one image or audio block: what
	// such a block costs depends on the model and its pixels, not on its bytes.
	ImageTokens int
}

// Arguments counts tool arguments as compact JSON.
func (g Gauge) Arguments(args json.RawMessage) int {
	if len(args) == 0 {
		return 0
	}
	return g.Counter.CountBytes(rawjson.Compact(args))
}

// Result counts a result of tools/call, resources/read or prompts/get: the
// text of its content blocks, or the structured content where that is larger,
// since hosts show one of the two. An error object counts by its message and
// data.
func (g Gauge) Result(r *Result) int {
	if r.Error != nil {
		return g.Counter.CountBytes(rawjson.Compact(r.Error))
	}
	blocks, structured := 0, 0
	rawjson.Members(r.Body, func(m rawjson.Member) bool {
		switch {
		case m.Is("content"), m.Is("contents"):
			blocks += g.list(m.Value)
		case m.Is("messages"):
			rawjson.Elements(m.Value, func(msg []byte) bool {
				if content, ok := rawjson.Get(msg, "content"); ok {
					blocks += g.list(content)
				}
				return true
			})
		case m.Is("structuredContent"):
			structured = g.Counter.CountBytes(rawjson.Compact(m.Value))
		}
		return true
	})
	return max(blocks, structured)
}

// list counts an array of content blocks, or a single block.
func (g Gauge) list(v []byte) int {
	if rawjson.KindOf(v) != rawjson.Array {
		return g.block(v)
	}
	n := 0
	rawjson.Elements(v, func(b []byte) bool { n += g.block(b); return true })
	return n
}

// block counts one content block (or one element of a resource's contents).
func (g Gauge) block(b []byte) int {
	kind, _ := rawjson.GetString(b, "type")
	switch kind {
	case "image", "audio":
		return g.ImageTokens
	case "text":
		if n, ok := g.text(b); ok {
			return n
		}
	case "resource":
		if res, ok := rawjson.Get(b, "resource"); ok {
			return g.block(res)
		}
	case "": // resource contents: {uri, text | blob}
		if n, ok := g.text(b); ok {
			return n
		}
		if blob, ok := rawjson.Get(b, "blob"); ok {
			if mime, _ := rawjson.GetString(b, "mimeType"); len(mime) >= 6 && mime[:6] == "image/" {
				return g.ImageTokens
			}
			return g.Counter.CountBytes(blob)
		}
	}
	return g.Counter.CountBytes(rawjson.Compact(b))
}

// texts are buffers for what is counted. Large ones are not kept.
var texts = sync.Pool{New: func() any { return new([]byte) }}

const maxTextKept = 2 << 20

// text counts the "text" of a block, if that is a string.
func (g Gauge) text(b []byte) (n int, ok bool) {
	lit, ok := rawjson.Get(b, "text")
	if !ok || rawjson.KindOf(lit) != rawjson.String {
		return 0, false
	}
	buf := texts.Get().(*[]byte)
	text := rawjson.AppendUnquote((*buf)[:0], lit)
	n = g.Counter.CountBytes(text)
	if cap(text) <= maxTextKept {
		*buf = text
		texts.Put(buf)
	}
	return n, true
}
