package arguments

import (
	"bytes"
	"encoding/json"
	"testing"
)

const properties = `{"text":{"type":"string"},"size":{"type":"number"},"line":{"type":"integer","minimum":1,"maximum":9},
	"deep":{"type":"boolean"},"free":{"type":"object"},"each":{"type":"array","items":{"type":"object"}},
	"steps":{"type":"array","items":{"type":"object","properties":{"tool":{"type":"string"}}}}}`

type target struct {
	Text  string
	Size  float64
	Line  float64
	Deep  bool
	Free  json.RawMessage
	Each  []json.RawMessage
	Steps []struct{ Tool string }
}

func TestDecode(t *testing.T) {
	const known = "; its arguments are text, size, line, deep, free, each, steps"
	for value, want := range map[string]string{
		``:                                      "",
		`null`:                                  "",
		` {} `:                                  "",
		`[]`:                                    "arguments must be a JSON object",
		`{"text":`:                              "arguments must be a JSON object",
		`{"text":"a"} x`:                        "the arguments of try are not as its schema says: invalid character 'x' after top-level value",
		`{"text":null,"size":8.0}`:              "",
		`{"text":1,"deep":"yes","size":"lots"}`: `text must be a string, not number; deep must be true or false, not string; size must be a whole number, not "lots"`,
		`{"size":0.5}`:                          "size must be a whole number, not 0.5",
		`{"size":1e400}`:                        "size must be a whole number, not 1e400",
		`{"size":2000000000000}`:                "size must be a whole number, not 2000000000000",
		`{"line":0}`:                            "line must be at least 1",
		`{"line":10}`:                           "line must be at most 9",
		`{"Text":"a","a\nb":1}`:                 `try takes no "Text", "a\nb"` + known,
		`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}`: `try takes no "a", "b", "c", "d", "e"` + known,
		`{"each":{}}`:                           "each must be a list, not object",
		`{"each":[{"any":1},2]}`:                "",
		`{"free":7}`:                            "",
		`{"steps":[{"tool":"a"},{"tol":"b"}]}`:  `steps[1] takes no "tol"; its arguments are tool`,
		`{"steps":[{"tool":1},{"tool":2}]}`:     "steps[0].tool must be a string, not number",
		`{"steps":["a"]}`:                       "steps[0] must be an object, not string",
	} {
		got := ""
		if err := Decode("try", []byte(properties), []byte(value), &target{}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("Decode(%s) = %q, want %q", value, got, want)
		}
	}
	in := target{Text: "default", Line: 3}
	if err := Decode("try", []byte(properties), []byte(`{"text":null,"line":4.0}`), &in); err != nil || in.Text != "default" || in.Line != 4 {
		t.Errorf("Decode = %+v, %v", in, err)
	}
}

// Decode accepts nothing that a strict decoder refuses.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"text":"a","line":2}`, `{"steps":[{"tool":1}]}`, `{"TEXT":1}`, `{"each":[`, `{"size":-0.0}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if err := Decode("try", []byte(properties), value, &target{}); err == nil && len(bytes.TrimSpace(value)) > 0 {
			strict := json.NewDecoder(bytes.NewReader(value))
			strict.DisallowUnknownFields()
			if err := strict.Decode(&target{}); err != nil {
				t.Errorf("Decode(%q) succeeded: %v", value, err)
			}
		}
	})
}
