package rawjson

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWalk(t *testing.T) {
	const in = ` {"a":"b\"c", "d" : [1,{},[],"x",{"y":null}] } `
	var got []string
	err := Walk([]byte(in), func(tok Token) bool {
		got = append(got, string("{}[]ksv"[tok.Event])+in[tok.Start:tok.End])
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(`{{ k"a" s"b\"c" k"d" [[ v1 {{ }} [[ ]] s"x" {{ k"y" vnull }} ]] }}`)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Walk: tokens differ (-want +got):\n%s", d)
	}
}

func TestWalkRefuses(t *testing.T) {
	for _, in := range []string{
		``, ` `, `{`, `[`, `"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `[1,]`, `[1 2]`, `{1:2}`,
		`{[]:1}`, `[}`, `{]`, `1 2`, `{}{}`, `[1}`, `,`, `{,}`, `[,1]`, `{"a"}`,
	} {
		if err := Walk([]byte(in), func(Token) bool { return true }); err == nil {
			t.Errorf("Walk(%q) = nil, want an error", in)
		}
	}
}

// FuzzWalk: what encoding/json accepts is walked to its end, and the tokens
// with the bytes between them are the input.
func FuzzWalk(f *testing.F) {
	f.Add([]byte(`{"a":[1,"x\\",{"b":true}],"c":{}}`))
	f.Add([]byte(`[[[]],{}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		at := 0
		err := Walk(b, func(tok Token) bool {
			if tok.Start < at || tok.End <= tok.Start || tok.End > len(b) {
				t.Fatalf("token %v after byte %d of %q", tok, at, b)
			}
			at = tok.End
			return true
		})
		if err != nil && json.Valid(b) {
			t.Fatalf("Walk(%q) = %v, want nil for valid JSON", b, err)
		}
	})
}
