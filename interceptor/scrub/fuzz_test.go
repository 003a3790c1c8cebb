package scrub

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/test/regexsample"
)

// FuzzJSON: valid JSON stays valid, all but strings stays byte for byte, and
// without a finding everything does.
func FuzzJSON(f *testing.F) {
	s := newScrubber(f, Options{})
	pat := github(1)
	for _, seed := range []string{
		`{"a":["x",1e5,{"b":null}],"c":"\u0041\n\\"}`, `"` + pat + `"`, `{"` + pat + `":{"` + pat + `":"\ud83d"}}`,
		`{"content":[{"type":"text","text":"` + pat[:9] + `"},{"type":"text","text":"` + pat[9:] + `"}]}`,
		`{"password":"hunter2!x","blob":"aGVsbG8gd29ybGQ="}`, `["%67%68p_\u200b"]`, `{"k":"\"` + pat + `\\"}`,
		`{"c":["id","token"],"r":[["x","` + pat + `"],[1,"q7w8e9r0t1y2"]]}`, `[["key"],["` + pat + `"],[{"f":[{"v":"x"}]}]]`,
		`{"blob":"` + base64.StdEncoding.EncodeToString([]byte(pat)) + `","mimeType":"text/plain"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := bytes.Clone(raw)
		got, found, err := s.JSON(context.Background(), raw)
		if !bytes.Equal(raw, in) {
			t.Fatalf("JSON changed its input %q", in)
		}
		if err != nil {
			if json.Valid(raw) {
				t.Fatalf("JSON(%q) = %v, want nil for valid JSON", raw, err)
			}
			return
		}
		if len(found) == 0 && !bytes.Equal(got, raw) {
			t.Fatalf("JSON(%q) = %q without a finding", raw, got)
		}
		if !json.Valid(raw) {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("JSON(%q) = %q, which is no JSON", raw, got)
		}
		if !same(raw, got) {
			t.Fatalf("JSON(%q) = %q: more than strings has changed", raw, got)
		}
	})
}

// same reports whether two documents are the same but for their strings.
func same(a, b []byte) bool {
	outside := func(doc []byte) []byte {
		var out []byte
		at := 0
		_ = rawjson.Walk(doc, func(t rawjson.Token) bool {
			if t.Event == rawjson.KeyToken || t.Event == rawjson.StringToken {
				out = append(append(out, doc[at:t.Start]...), '"')
				at = t.End
			}
			return true
		})
		return append(out, doc[at:]...)
	}
	return bytes.Equal(outside(a), outside(b))
}

// FuzzText: text without a finding is unchanged, one with a finding has a
// redaction, and a text is never longer than its redactions make it.
func FuzzText(f *testing.F) {
	s := newScrubber(f, Options{})
	sam := regexsample.New(7)
	trees := defaultTrees(s)
	for range 40 {
		f.Add(sam.Text(trees, 200))
	}
	f.Add("\u212aey=\xff%41\\u0041 " + github(2))
	f.Add("CREATE TABLE a (id int, -- the user's\n password text DEFAULT 'a,b)', KEY n (id));\nINSERT INTO a VALUES (1, f('hunter2x9', 2)), (NULL, N'it''s');")
	f.Add("COPY a (id, password) FROM stdin csv;\n1,\"hunter2x9\"\n\\.\nREPLACE INTO [a] (`key`, value) VALUE ('smtp_password', 'hunter\\'2x9');")
	f.Fuzz(func(t *testing.T, text string) {
		got, found, err := s.Text(context.Background(), text)
		if err != nil {
			t.Fatalf("Text(%q) = %v", text, err)
		}
		if n := strings.Count(got, "[REDACTED:") - strings.Count(text, "[REDACTED:"); (len(found) == 0) != (got == text) || n > 0 && len(found) == 0 {
			t.Fatalf("Text(%q) = %q with findings %v", text, got, found)
		}
	})
}

// FuzzPlanted: a secret planted anywhere in any text is gone afterwards, in
// all encodings in which it was planted.
func FuzzPlanted(f *testing.F) {
	s := newScrubber(f, Options{})
	f.Add("before ", " after", uint64(1))
	f.Add("key=\"", "\"", uint64(2))
	f.Add("\xff\u212a%", "\\u\\\"", uint64(3))
	f.Add("-----BEGIN PRIVATE KEY-----", "KEY-----", uint64(4))
	f.Add("a=3D1 b=\n", "=C3\r\n&quot;&#x;", uint64(5))
	f.Add("g\x00h\x00p\x00", "H4sIAAAAAAAAA0tMSk5JTUvPyMwCAA eJwDAAAAAAE=", uint64(6))
	f.Fuzz(func(t *testing.T, pre, post string, seed uint64) {
		pat := github(seed)
		hidden := []string{
			pat,
			base64.StdEncoding.EncodeToString([]byte(pat)),
			hex.EncodeToString([]byte(pat)),
			url.QueryEscape("\"" + pat + "\""),
			each(pat, `\u%04x`),
			each(pat, "&#%d;"),
			base64.StdEncoding.EncodeToString(inUTF16(binary.LittleEndian, "\ufeff"+pat)),
			base64.StdEncoding.EncodeToString(packed(pat, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })),
			strings.Join(strings.Split(pat, ""), "\u200b"),
		}
		for _, x := range hidden {
			// A separator on both sides: glued to other letters it would be
			// another token, or other base64.
			in := pre + "\n" + x + "\n" + post
			if strings.Count(in, x) != 1 {
				continue
			}
			got, _, err := s.Text(context.Background(), in)
			if err != nil || strings.Contains(got, x) {
				t.Fatalf("Text(%q) = %q, %v: %q is still there", in, got, err, x)
			}
			quoted, _ := json.Marshal(map[string]string{"text": in})
			clean, _, err := s.JSON(context.Background(), quoted)
			var v map[string]string
			if err != nil || json.Unmarshal(clean, &v) != nil || strings.Contains(v["text"], x) {
				t.Fatalf("JSON(%q) = %q, %v: %q is still there", quoted, clean, err, x)
			}
		}
	})
}

// FuzzSameAsGitleaks: any text has the findings that gitleaks' detector has.
func FuzzSameAsGitleaks(f *testing.F) {
	s, d := newScrubber(f, Options{}), reference(f)
	sam := regexsample.New(8)
	trees := defaultTrees(s)
	for range 60 {
		f.Add(sam.Text(trees, 300))
	}
	f.Fuzz(func(t *testing.T, text string) {
		compareOne(t, s, d, text, map[string]int{}, "fuzz")
	})
}
