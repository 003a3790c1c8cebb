package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// A response of JSON-RPC 1.0 has both members, of which one is null: that one does not go on.
func TestNullBesideTheAnswer(t *testing.T) {
	for _, tc := range []struct{ raw, want string }{
		{`{"jsonrpc":"2.0","id":1,"error":null,"result":{"a":1}}`, `{"jsonrpc":"2.0","id":1,"result":{"a":1}}`},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"},"result":null}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`},
		{`{"jsonrpc":"2.0","id":1,"error":null,"result":null}`, `{"jsonrpc":"2.0","id":1,"result":null}`},
	} {
		if m, err := ParseMessage([]byte(tc.raw)); err != nil || string(m.Encode()) != tc.want {
			t.Errorf("%s goes on as %s, %v; want %s", tc.raw, m.Encode(), err, tc.want)
		}
	}
}

func TestReadableError(t *testing.T) {
	for _, raw := range []string{`{"code":-32000,"message":"no"}`, `{"code":1.0,"message":"","data":null,"more":1}`, `{"code":9007199254740993,"message":"m"}`} {
		if got := ReadableError([]byte(raw)); string(got) != raw {
			t.Errorf("%s became %s", raw, got)
		}
	}
	for raw, code := range map[string]string{
		`"boom"`: "-32603", `null`: "-32603", `[1]`: "-32603", `{}`: "-32603", `{"code":1}`: "1", `{"message":"no"}`: "-32603", `{"code":"1","message":"no"}`: "-32603",
		`{"code":1.5,"message":"no"}`: "-32603", `{"code":1e400,"message":"no"}`: "-32603", `{"code":1e300,"message":1}`: "-32603", `{"code":-32001,"message":["no"]}`: "-32001",
	} {
		want := `{"code":` + code + `,"message":"the server's error is none of JSON-RPC 2.0; data has what it sent","data":` + raw + `}`
		if got := ReadableError([]byte(raw)); string(got) != want {
			t.Errorf("%s became %s", raw, got)
		}
	}
}

func TestReadableResult(t *testing.T) {
	for raw, want := range map[string]string{
		`{"content":"x"}`: `"result":{"content":"x"}`, `null`: `"result":{}`,
		`"x"`: `"error":{"code":-32603,"message":"the server's result is not an object; data has what it sent","data":"x"}`,
		`[1]`: `"error":{"code":-32603,"message":"the server's result is not an object; data has what it sent","data":[1]}`,
	} {
		if got := string((Message{ID: []byte("1"), Result: []byte(raw)}).ReadableResult().Encode()); got != `{"jsonrpc":"2.0","id":1,`+want+`}` {
			t.Errorf("%s became %s", raw, got)
		}
	}
}

func TestParseMessage(t *testing.T) {
	for _, tc := range []struct {
		name, raw string
		kind      string // request, notification, response, or the words of the error
	}{
		{"request", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "request"},
		{"blanks around", " \t{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n", "request"},
		{"string id", `{"jsonrpc":"2.0","id":"a","method":"ping"}`, "request"},
		{"huge id", `{"jsonrpc":"2.0","id":12345678901234567890123,"method":"ping"}`, "request"},
		{"escaped keys", `{"jsonr\u0070c":"2.0","\u0069d":1,"method":"p\u0069ng"}`, "request"},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "notification"},
		{"result", `{"jsonrpc":"2.0","id":1,"result":null}`, "response"},
		{"error", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`, "response"},
		{"a null error", `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, "response"},
		{"a null result", `{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1,"message":"no"}}`, "response"},
		{"both null", `{"jsonrpc":"2.0","id":1,"result":null,"error":null}`, "response"},
		{"error for an unreadable request", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}`, "response"},
		{"not JSON", `{"jsonrpc":"2.0","id":1,`, "not valid JSON"},
		{"another spelling", `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}`, "another spelling"},
		{"another spelling, escaped", `{"jsonrpc":"2.0","id":1,"method":"ping","\u0050arams":{}}`, "another spelling"},
		{"another spelling, not of ASCII", `{"jsonrpc":"2.0","id":1,"method":"ping","param\u017f":{}}`, "another spelling"},
		{"two values", `{"jsonrpc":"2.0","id":1,"method":"a"}{}`, "not valid JSON"},
		{"nothing", ``, "not valid JSON"},
		{"too deep", `{"jsonrpc":"2.0","id":1,"method":"a","params":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`, "nests deeper than 2000 levels"},
		{"array", `[]`, "not an object"},
		{"no version", `{"id":1,"method":"ping"}`, `jsonrpc is ""`},
		{"version 1", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, `jsonrpc is "1.0"`},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "id must be"},
		{"boolean id", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, "id must be"},
		{"a method that is no string", `{"jsonrpc":"2.0","id":1,"method":5}`, "method must be a string"},
		{"null for a method", `{"jsonrpc":"2.0","id":1,"method":null}`, "method must be a string"},
		{"an empty method", `{"jsonrpc":"2.0","method":""}`, "method must be a string"},
		{"a result and null for a method", `{"jsonrpc":"2.0","id":1,"method":null,"result":{}}`, "response"},
		{"neither", `{"jsonrpc":"2.0"}`, "neither method nor id"},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, "either result or error"},
		{"neither result nor error", `{"jsonrpc":"2.0","id":1}`, "either result or error"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := ParseMessage([]byte(tc.raw))
			got := "response"
			switch {
			case err != nil:
				got = err.Error()
			case m.IsRequest():
				got = "request"
			case m.IsNotification():
				got = "notification"
			}
			if !strings.Contains(got, tc.kind) {
				t.Errorf("ParseMessage = %q, want %q", got, tc.kind)
			}
			if err != nil && !errors.Is(err, ErrNotJSON) && !errors.Is(err, errTooDeep) && !errors.Is(err, errNotMessage) {
				t.Errorf("error %v is none of the three", err)
			}
		})
	}
}

// TestEncodeKeeps: what a message says is what it said, down to the spelling of
// numbers, and members that nobody knows go along.
func TestEncodeKeeps(t *testing.T) {
	const raw = `{"x":{"deep":[1.0e2]},"jsonrpc":"2.0","id":1.50,"method":"a\/b","params":{"n":12345678901234567890,"n":1},"y":"\ud800"}`
	const want = `{"jsonrpc":"2.0","id":1.50,"method":"a/b","params":{"n":12345678901234567890,"n":1},"x":{"deep":[1.0e2]},"y":"\ud800"}`
	m, err := ParseMessage([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(m.Encode()); got != want {
		t.Errorf("Encode\n got %s\nwant %s", got, want)
	}
	changed := m.WithParams(json.RawMessage(`{}`))
	if got, want := string(changed.Raw), strings.Replace(want, `{"n":12345678901234567890,"n":1}`, `{}`, 1); got != want {
		t.Errorf("withParams\n got %s\nwant %s", got, want)
	}
	if string(m.Params) != `{"n":12345678901234567890,"n":1}` {
		t.Errorf("withParams changed the message it was called on: %s", m.Params)
	}
}

// FuzzMessage: a message that is read can be written and read again, and says
// the same.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[1,2]},"z":1}`,
		`{"jsonrpc":"2.0","id":"x","result":{"a":"\u0000\ud83d\ude00"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":1}}`,
		`{"jsonrpc":"2.0","method":"\ud800","id":1,"id":2}`,
		`[{"jsonrpc":"2.0"}]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseMessage(raw)
		if err != nil {
			return
		}
		out := m.Encode()
		if !json.Valid(out) {
			t.Fatalf("%q was written as %q, which is not JSON", raw, out)
		}
		again, err := ParseMessage(out)
		if err != nil {
			t.Fatalf("%q was written as %q, which is not a message: %v", raw, out, err)
		}
		// JSON is UTF-8: what is not is written as U+FFFD in the one place that
		// is decoded, the method.
		if string(again.ID) != string(m.ID) || (again.Method != m.Method && utf8.ValidString(m.Method)) || string(again.Params) != string(m.Params) ||
			string(again.Result) != string(m.Result) || string(again.Error) != string(m.Error) || string(again.Extra) != string(m.Extra) {
			t.Fatalf("%q was read again as %+v, want %+v", raw, again, m)
		}
	})
}

// No error shows a part of a word: it can be a secret, of which only the whole is found later.
func TestClip(t *testing.T) {
	word := strings.Repeat("x", 150)
	for text, want := range map[string]string{
		"short":                               "short",
		word + " " + word[:49]:                word + " " + word[:49],
		word + " " + word[:49] + " " + "more": word + " " + word[:49] + " … (205 bytes)",
		word + "\n" + word:                    word + "\n… (301 bytes)",
		word + word:                           "… (300 bytes)",
		strings.Repeat("無", 100):              strings.Repeat("無", 67) + "… (300 bytes)",
	} {
		if got := Clip(text); got != want {
			t.Errorf("Clip(%q) = %q, want %q", text, got, want)
		}
	}
}
