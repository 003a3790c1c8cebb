package llmstub

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The same conversation in the three dialects: the user's text, a text and a call, the call's
// result.
var conversations = map[string]string{
	"messages": `{"model":"m","stream":true,"system":[{"type":"text","text":"Be brief."}],"tools":[{"name":"read","input_schema":{}}],"messages":[
		{"role":"user","content":[{"type":"text","text":"look"}]},
		{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"c1","name":"read","input":{"path":"a"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"ä"},{"type":"text","text":"b"}]}]}]}`,
	"chat/completions": `{"model":"m","stream":true,"tools":[{"type":"function","function":{"name":"read"}}],"messages":[
		{"role":"user","content":"look"},
		{"role":"assistant","content":"I look.","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"path\":\"a\"}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"ä\nb"}]}`,
	"responses": `{"model":"m","stream":true,"instructions":"Be brief.","tools":[{"type":"function","name":"read"}],"input":[
		{"type":"message","role":"user","content":[{"type":"input_text","text":"look"}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
		{"type":"function_call","call_id":"c1","name":"read","arguments":"{\"path\":\"a\"}"},
		{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"ä"},{"type":"input_text","text":"b"}]}]}`,
	"v1beta/models/m:streamGenerateContent": `{"systemInstruction":{"parts":[{"text":"Be brief."}]},"tools":[{"functionDeclarations":[{"name":"read"}]}],"contents":[
		{"role":"user","parts":[{"text":"look"}]},
		{"role":"model","parts":[{"text":"I look."},{"functionCall":{"id":"c1","name":"read","args":{"path":"a"}}}]},
		{"role":"user","parts":[{"functionResponse":{"id":"c1","name":"read","response":{"output":"ä\nb"}}}]}]}`,
}

func ask(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

func start(t *testing.T, agents ...Agent) *Server {
	t.Helper()
	s, err := Start(agents...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Each dialect is understood alike, and the script goes on after one turn.
func TestDialects(t *testing.T) {
	first := func(Request) (Reply, error) { t.Error("the first turn again"); return Reply{}, nil }
	second := func(Request) (Reply, error) {
		return Reply{Text: "Ünd\nnow", Calls: []Call{{Name: "read", Arguments: `{"path":"ß"}`}}}, nil
	}
	s := start(t, Agent{Name: "other", Match: func(r Request) bool { return r.First("user") != "look" }},
		Agent{Name: "main", Play: Script(first, second)})
	want := []Message{
		{Role: "user", Text: "look"},
		{Role: "assistant", Text: "I look.", Calls: []Call{{ID: "c1", Name: "read", Arguments: `{"path":"a"}`}}},
		{Role: "tool", Text: "ä\nb", CallID: "c1"},
	}
	for api, body := range conversations {
		status, answer := ask(t, s.URL()+"/"+api, body)
		text, args, id := spoken(t, answer)
		if status != 200 || text != "Ünd\nnow" || args != `{"path":"ß"}` || id == "" {
			t.Errorf("%s: %d, text %q, arguments %q of call %q, from\n%s", api, status, text, args, id, answer)
		}
		all := s.Requests("main")
		got := all[len(all)-1]
		if api == "responses" { // it has an item for each part of a turn
			got.Messages[1].Calls = got.Messages[2].Calls
			got.Messages = append(got.Messages[:2:2], got.Messages[3:]...)
		}
		if diff := cmp.Diff(want, got.Messages); diff != "" {
			t.Errorf("%s: messages (-want +got):\n%s", api, diff)
		}
		if got.API != api || got.Model != "m" || !cmp.Equal(got.Tools, []string{"read"}) || !cmp.Equal(got.Results(), []string{"ä\nb"}) {
			t.Errorf("%s: request = %+v", api, got)
		}
		if string(got.Body) != body {
			t.Errorf("%s: the body is not kept as it came", api)
		}
	}
	if faults := s.Faults(); faults != nil {
		t.Errorf("faults: %q", faults)
	}
}

// spoken joins the pieces of a stream of any dialect.
func spoken(t *testing.T, stream string) (text, arguments, call string) {
	t.Helper()
	for line := range strings.Lines(stream) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var e struct {
			Type         string
			Delta        json.RawMessage
			ContentBlock struct{ ID string }         `json:"content_block"`
			Item         struct{ CallID, ID string } `json:"item"`
			Choices      []struct {
				Delta struct {
					Content   string
					ToolCalls []struct {
						ID       string
						Function struct{ Arguments string }
					} `json:"tool_calls"`
				}
			}
			Candidates []struct {
				Content struct {
					Parts []struct {
						Text         string
						FunctionCall struct {
							ID   string
							Args json.RawMessage
						}
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		call += e.ContentBlock.ID + e.Item.ID
		var block struct {
			Text    string
			Partial string `json:"partial_json"`
		}
		var piece string
		if json.Unmarshal(e.Delta, &piece) != nil {
			_ = json.Unmarshal(e.Delta, &block) // absent in other events
		}
		if e.Type == "response.output_text.delta" {
			text += piece
		} else {
			arguments += piece
		}
		text, arguments = text+block.Text, arguments+block.Partial
		for _, c := range e.Candidates {
			for _, p := range c.Content.Parts {
				text, call, arguments = text+p.Text, call+p.FunctionCall.ID, arguments+string(p.FunctionCall.Args)
			}
		}
		for _, c := range e.Choices {
			text += c.Delta.Content
			for _, tc := range c.Delta.ToolCalls {
				call, arguments = call+tc.ID, arguments+tc.Function.Arguments
			}
		}
	}
	return text, arguments, call
}

// A request that the script does not foresee fails with a status that no host repeats, and the
// test is told.
func TestUnforeseen(t *testing.T) {
	s := start(t, Agent{Name: "main", Match: func(r Request) bool { return r.First("user") == "look" }, Play: Script(Say("once"))})
	for body, want := range map[string]string{
		`{"stream":true,"messages":[{"role":"user","content":"else"}]}`: `no agent takes`,
		`{"messages":[{"role":"user","content":"look"}]}`:               `without "stream"`,
		`{"stream":true,"messages":[{"role":"user","content":"look"},{"role":"assistant","content":"once"},{"role":"user","content":"and then it asked"}]}`: `the script has 1 turns`,
		`{"stream":`: "unexpected end",
	} {
		before := len(s.Faults())
		if status, _ := ask(t, s.URL()+"/chat/completions", body); status != http.StatusBadRequest {
			t.Errorf("%s: status %d, want 400", body, status)
		}
		faults := s.Faults()
		if len(faults) != before+1 || !strings.Contains(faults[before], want) {
			t.Errorf("%s: faults %q, want one more with %q", body, faults, want)
		}
	}
	if status, _ := ask(t, s.URL()+"/models", `{}`); status != http.StatusNotFound {
		t.Errorf("models: status %d, want 404", status)
	}
	if n := len(s.Requests()); n != 4 {
		t.Errorf("%d requests are kept, want the 4 to the model", n)
	}
}
