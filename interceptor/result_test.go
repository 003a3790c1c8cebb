package interceptor

import (
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Whatever the form of a result, what is delivered of it is valid, has the preview where programs look
// for it, and no more of the rest than may stay.
func FuzzSplit(f *testing.F) {
	for _, body := range []string{
		`{"content":[{"type":"text","text":"a"},{"type":"image","data":"AA","mimeType":"i/p","x":1}],"structuredContent":{"a":1},"isError":true}`,
		`{"task":{"taskId":"t","status":"failed","error":{"code":-1,"message":"m","data":[1]},"_meta":{"_meta":{"x":1}}}}`,
		`{"taskId":"t","result":{"content":"a"},"x":[]}`, `{"resultType":"future","x":1}`, `"a"`, `[]`, `{"error":"a","taskId":1}`,
		`{"content":[{"type":"resource","resource":{"uri":"u","blob":"AA","resource":{"resource":{}}}},{"type":"resource_link"},[1],"a"]}`, `{"content":[],"content":{}}`,
	} {
		f.Add([]byte(body), []byte(`,"a":1`), false)
		f.Add([]byte(body), []byte(nil), true)
	}
	f.Fuzz(func(t *testing.T, body, extra []byte, failed bool) {
		if !rawjson.Valid(body, 64) || len(extra) > 0 && (extra[0] != ',' || !rawjson.Valid([]byte("{"+string(extra[1:])+"}"), 64)) {
			t.Skip()
		}
		r := &Result{Body: body, Extra: extra}
		if failed {
			r = &Result{Error: body, Extra: extra}
		}
		r.opaque()
		r.Text()
		for _, cut := range []bool{false, true} {
			p := split(r, cut)
			out := p.with("preview", []byte(`{"handle":"h"}`))
			whole := out.Body
			if failed {
				whole = out.Error
			}
			if !rawjson.Valid(whole, 80) || len(out.Extra) > 0 && !rawjson.Valid([]byte("{"+string(out.Extra[1:])+"}"), 64) {
				t.Fatalf("cut %v: %s%s of %s%s", cut, whole, out.Extra, body, extra)
			}
			at := p.at
			if !p.blocks() {
				if text, _ := rawjson.GetString(whole, at...); text != "preview" {
					t.Fatalf("cut %v: no preview in %s of %s", cut, whole, body)
				}
				continue
			}
			content, _ := rawjson.Get(whole, at...)
			first := ""
			for b := range rawjson.Elements(content) {
				first, _ = rawjson.GetString(b, "text")
				break
			}
			if first != "preview" {
				t.Fatalf("cut %v: no preview in %s of %s", cut, whole, body)
			}
		}
	})
}
