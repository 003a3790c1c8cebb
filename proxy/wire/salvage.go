package wire

import (
	"bytes"
	"regexp"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// idAtEnd matches an id that follows the large member of a message.
var idAtEnd = regexp.MustCompile(`,\s*"id"\s*:\s*("[^"\\]*"|-?\d[\d.eE+-]*)\s*(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*)*\}\s*$`)

// Salvage reads the id's literal and the method from the first bytes of a message and, if they are
// not the whole, from the last ones. The id is nil if it is not found. The method is "" for a
// response, or if it is not found.
func Salvage(head, tail []byte) (id []byte, method string) {
	if rawjson.KindOf(head) != rawjson.Object {
		return nil, ""
	}
	for m := range rawjson.Members(head) {
		switch {
		case m.Is("id") && len(m.Value) > 0:
			id = bytes.Clone(m.Value)
		case m.Is("method"):
			method = rawjson.Unquote(m.Value)
		}
	}
	if m := idAtEnd.FindSubmatch(tail); id == nil && m != nil {
		id = bytes.Clone(m[1])
	}
	return id, method
}
