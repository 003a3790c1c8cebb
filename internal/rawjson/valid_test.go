package rawjson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

var validSeeds = []string{
	``, ` `, `null`, ` true `, `false`, `nul`, `truex`, `0`, `-0`, `01`, `-`, `1.`, `.5`, `1e`, `1e+`, `1E-07`, `-1.5e300`, `1 2`,
	`""`, `"a`, `"\"`, `"\\"`, `"\u12aF"`, `"\u12ag"`, `"\u12"`, `"\ud83d"`, `"\x"`, "\"\x1f\"", "\"\x7f\xff\x80\"", `"12345678\n12345678"`, "\"1234567\x01\"", `"12345678`, "\"\xa2\xdc\xa0\xe2\"",
	`[]`, `[ ]`, `[,]`, `[1,]`, `[1 ,2]`, `[1 2]`, `]`, `[}`, `[[],[[]]]`, `[`, `[1`, `[1,`,
	`{}`, `{ }`, `{,}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a" : 1 , "b":[{}]}`, `{1:2}`, `{]`, `{"a":1`, `{"a":1]`, `[1}`, "\n{\"a\"\t:\r1}\n", `{} {}`,
}

func checkValid(t *testing.T, in string) {
	t.Helper()
	if got, want := Valid([]byte(in), 10000), json.Valid([]byte(in)); got != want {
		t.Errorf("Valid(%q) = %v, json.Valid says %v", in, got, want)
	}
}

func TestValid(t *testing.T) {
	for _, in := range validSeeds {
		checkValid(t, in)
		checkValid(t, `{"k":[`+in+`]}`)
		for _, cut := range []int{1, len(in) / 2} {
			if len(in) > cut {
				checkValid(t, in[:len(in)-cut])
			}
		}
	}
}

func TestValidDepth(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, 2000, 2047, 2048, 2049, 5000} {
		for _, in := range []string{
			strings.Repeat("[", n) + strings.Repeat("]", n),
			strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n),
			strings.Repeat(`[{"a":`, (n+1)/2)[:(n/2)*6+n%2] + "1" + strings.Repeat("}]", (n+1)/2)[n%2:],
		} {
			if !Valid([]byte(in), n) || Valid([]byte(in), n-1) {
				t.Errorf("%d levels of %.12s: Valid to %d is %v, to %d is %v", n, in, n, Valid([]byte(in), n), n-1, Valid([]byte(in), n-1))
			}
		}
	}
}

// TestPlain puts every byte at every place of a step, among bytes that a borrow
// could mark.
func TestPlain(t *testing.T) {
	slow := func(b []byte, i int) int {
		for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
			i++
		}
		return i
	}
	for _, around := range []byte{' ', '!', '#', '[', ']', 0x7f, 0x80, 0x9f, 0xa0, 0xa2, 0xdc, 0xff, '"', '\\', 0} {
		for size := range 40 {
			b := bytes.Repeat([]byte{around}, size)
			for at := range b {
				for c := range 256 {
					b[at] = byte(c)
					for _, from := range []int{0, 1, at} {
						if got, want := plain(b, from), slow(b, from); got != want {
							t.Fatalf("plain(%q, %d) = %d, want %d", b, from, got, want)
						}
					}
				}
				b[at] = around
			}
		}
	}
}

// FuzzValid: Valid agrees with encoding/json within the depth, for all bytes.
func FuzzValid(f *testing.F) {
	for _, in := range validSeeds {
		f.Add(in, 3)
	}
	f.Fuzz(func(t *testing.T, in string, depth int) {
		checkValid(t, in)
		if depth >= 0 && json.Valid([]byte(in)) && Valid([]byte(in), depth) != (depthOf([]byte(in)) <= depth) {
			t.Errorf("Valid(%q, %d) = %v, depth = %d", in, depth, Valid([]byte(in), depth), depthOf([]byte(in)))
		}
	})
}

func BenchmarkValid(b *testing.B) {
	text := strings.Repeat(`the \"quick\" brown fox jumps over the lazy dog, `, 80)
	in := []byte(`{"jsonrpc":"2.0","id":1234,"result":{"content":[{"type":"text","text":"` + text + `"}],"isError":false}}`)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if !Valid(in, 2000) {
			b.Fatal("not valid")
		}
	}
}

// depthOf returns the depth of the arrays and objects in b: 0 for a scalar.
func depthOf(b []byte) int {
	depth, deepest := 0, 0
	for i := 0; i < len(b); {
		switch b[i] {
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		case '"':
			if i = stringEnd(b, i); i < 0 {
				return deepest
			}
			continue
		}
		i++
	}
	return deepest
}
