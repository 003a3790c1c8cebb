package wire

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Every set that a host can declare survives JSON, and sets are equal only if their bytes are.
func TestCapabilities(t *testing.T) {
	seen := map[string]Capabilities{}
	for c := range AllCapabilities + 1 {
		got := ReadCapabilities(c.JSON())
		if want := ReadCapabilities(got.JSON()); got != want {
			t.Errorf("%s becomes %s", got, want)
		}
		for _, text := range []string{string(got.JSON()), got.String()} {
			if other, taken := seen[text]; taken && other != got {
				t.Errorf("%s and %s are both %s", got, other, text)
			}
			seen[text] = got
		}
	}
	for declared, want := range map[string]string{
		`{}`: "none", `null`: "none", `[]`: "none", ``: "none", `{"experimental":{"x":{}},"tasks":{}}`: "none",
		`{"elicitation":{}}`:                    "elicitation.form",
		`{"elicitation":{"form":{}}}`:           "elicitation.form",
		`{"elicitation":{"url":{}}}`:            "elicitation.url",
		`{"elicitation":{"url":{},"form":{}}}`:  "elicitation.form,elicitation.url",
		`{"elicitation":null,"sampling":false}`: "none",
		`{"\u0065licitation":{}}`:               "elicitation.form",
		`{"sampling":{"tools":{}}}`:             "sampling,sampling.tools",
		`{"sampling":{"context":{}}}`:           "sampling,sampling.context",
		`{"roots":{"listChanged":false}}`:       "roots",
		`{"roots":{"listChanged":true},"x":1}`:  "roots,roots.listChanged",
	} {
		if got := ReadCapabilities(json.RawMessage(declared)).String(); got != want {
			t.Errorf("%s is %s, want %s", declared, got, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		method, params string
		need           string // "" if no host answers it
	}{
		{"elicitation/create", `{}`, `{"elicitation":{}}`},
		{"elicitation/create", `{"mode":"form"}`, `{"elicitation":{"form":{}}}`},
		{"elicitation/create", `{"mode":"url"}`, `{"elicitation":{"url":{}}}`},
		{"sampling/createMessage", `{"mode":"url"}`, `{"sampling":{}}`},
		{"roots/list", ``, `{"roots":{}}`},
		{"x/custom", `{}`, ``},
	} {
		m := Message{Method: tt.method, Params: json.RawMessage(tt.params)}
		need := ReadCapabilities(json.RawMessage(tt.need))
		for c := range AllCapabilities + 1 {
			if got, want := c.Answers(m), need != 0 && c&need == need; got != want {
				t.Error(fmt.Sprintf("%s with %s:", tt.method, tt.params), c, "answers:", got)
			}
		}
	}
}

func FuzzCapabilities(f *testing.F) {
	f.Add([]byte(`{"elicitation":{"url":{}},"sampling":{},"roots":{"listChanged":true}}`))
	f.Fuzz(func(t *testing.T, declared []byte) {
		if c := ReadCapabilities(declared); ReadCapabilities(c.JSON()) != c {
			t.Errorf("%q: %s becomes %s", declared, c, ReadCapabilities(c.JSON()))
		}
	})
}
