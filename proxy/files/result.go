package files

import (
	"encoding/json"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// textResult is a tools/call result with one text block.
func textResult(text string) json.RawMessage {
	out := append([]byte(nil), `{"content":[{"type":"text","text":`...)
	out = rawjson.AppendQuote(out, text)
	return append(out, `}]}`...)
}

// errorResult is a tools/call result that the model is to read as a failure.
func errorResult(err error) json.RawMessage {
	out := append([]byte(nil), `{"content":[{"type":"text","text":`...)
	out = rawjson.AppendQuote(out, err.Error())
	return append(out, `}],"isError":true}`...)
}

// report collects lines up to a limit in bytes, then a word on what is missing.
type report struct {
	b     strings.Builder
	limit int
}

// add appends line and reports whether there was room for it.
func (r *report) add(line string) bool {
	if r.b.Len()+len(line)+1 > r.limit {
		return false
	}
	if r.b.Len() > 0 {
		r.b.WriteByte('\n')
	}
	r.b.WriteString(line)
	return true
}

// note appends a remark of the tool itself, in parentheses, past any limit.
func (r *report) note(text string) {
	if r.b.Len() > 0 {
		r.b.WriteByte('\n')
	}
	r.b.WriteString("(" + text + ")")
}

func (r *report) String() string { return r.b.String() }
