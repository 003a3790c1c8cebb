package interceptor

import (
	"bytes"
	"fmt"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// foldMeta is the key in _meta that tells a program what was folded. Models
// don't see it.
const foldMeta = "io.github.foldgate/fold"

// parts are what a tool result consists of.
type parts struct {
	body []byte
	// text is what a model would read: text blocks and embedded texts, one
	// after the other; or the structured content, where the text is no more
	// than a caption to it. kept are the other blocks (images, audio, links, a caption) as an
	// array, to be delivered as they are.
	text string
	kept []byte
	// structured is the structured content in compact form, nil where there is
	// none or text says the same.
	structured []byte
}

// splitResult takes the result of a tools/call apart.
func splitResult(body []byte) (p parts) {
	p.body = body
	var text bytes.Buffer
	kept := []byte("[")
	content, _ := rawjson.Get(body, "content")
	rawjson.Elements(content, func(b []byte) bool {
		t, ok := blockText(b)
		switch {
		case !ok:
			if len(kept) > 1 {
				kept = append(kept, ',')
			}
			kept = append(kept, b...)
		case t != "":
			if text.Len() > 0 && !bytes.HasSuffix(text.Bytes(), []byte("\n")) {
				text.WriteByte('\n')
			}
			text.WriteString(t)
		}
		return true
	})
	p.text = text.String()
	defer func() { p.kept = append(kept, ']') }()
	if s, ok := rawjson.Get(body, "structuredContent"); ok && rawjson.KindOf(s) != rawjson.Null {
		if s = rawjson.Compact(s); !bytes.Equal(s, rawjson.Compact([]byte(p.text))) {
			p.structured = s
		}
	}
	if p.structured != nil && len(p.text) <= caption && len(p.text) < len(p.structured) {
		if p.text != "" {
			if len(kept) > 1 {
				kept = append(kept, ',')
			}
			kept = append(append(append(kept, `{"type":"text","text":`...), rawjson.Quote(p.text)...), '}')
		}
		p.text, p.structured = string(p.structured), nil
	}
	return p
}

// caption is the longest text, in bytes, that is delivered whole beside the
// preview of structured content.
const caption = 600

// blockText returns the text of a content block; ok is false for blocks that
// are delivered as they are.
func blockText(b []byte) (text string, ok bool) {
	kind, _ := rawjson.GetString(b, "type")
	switch kind {
	case "text":
		if isHandle(b) {
			return "", false
		}
		return rawjson.GetString(b, "text")
	case "resource":
		uri, _ := rawjson.GetString(b, "resource", "uri")
		if t, has := rawjson.GetString(b, "resource", "text"); has {
			return fmt.Sprintf("[resource %s]\n%s", uri, t), true
		}
	}
	return "", false
}

// with returns the result with preview in the place of its text. Structured
// content goes, since hosts that show it show nothing else; all other members
// stay.
func (p parts) with(preview, handle string, tokens int) *Result {
	content := append([]byte(`[{"type":"text","text":`), rawjson.Quote(preview)...)
	content = append(content, '}')
	if len(p.kept) > 2 {
		content = append(append(content, ','), p.kept[1:len(p.kept)-1]...)
	}
	body := rawjson.Delete(rawjson.Set(p.body, append(content, ']'), "content"), "structuredContent")
	return &Result{Body: rawjson.Set(body, fmt.Appendf(nil, `{"handle":"%s","tokens":%d}`, handle, tokens), "_meta", foldMeta)}
}
