package rawjson

import (
	"bytes"
	"encoding/json"
	"testing"
)

var loose = []string{
	`{"a":1}`, ` { "a" : [ 1 , "x  y" ,{ } ] } `, "[\n\t1,\r\n 2 ]\n", `"a b"`, ` 1 `, `"\" "`, `[[ ]]`, `{"a": "\\", "b": " \" "}`, `{"a":1`, `[1 2]`, ``, ` `, `nul l`,
}

// Property: what encoding/json compacts becomes the same, and what it refuses stays.
func FuzzCompact(f *testing.F) {
	for _, s := range loose {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		before := bytes.Clone(v)
		var buf bytes.Buffer
		want := v
		if json.Compact(&buf, v) == nil {
			want = buf.Bytes()
		}
		if got := Compact(v); !bytes.Equal(got, want) {
			t.Errorf("Compact(%q) = %q, want %q", v, got, want)
		}
		if !bytes.Equal(v, before) {
			t.Errorf("Compact changed its input to %q from %q", v, before)
		}
	})
}

func BenchmarkCompact(b *testing.B) {
	doc := []byte(`[` + `{"name": "a name of some length", "values": [1, 2, 3], "nested": {"more": true}}`)
	for len(doc) < 4096 {
		doc = append(doc, `, {"name": "another of them", "values": [10, 20, 30.5], "nested": {"more": null}}`...)
	}
	doc = append(doc, ']')
	for _, c := range []struct {
		name string
		doc  []byte
	}{{"spaced", doc}, {"compact", Compact(doc)}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.doc)))
			b.ReportAllocs()
			for b.Loop() {
				Compact(c.doc)
			}
		})
	}
}
