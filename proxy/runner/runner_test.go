package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// script is a branch whose model says what a test wrote down.
type script struct {
	turns []Message
	left  func(asked int) (why string, err error)

	mu       sync.Mutex
	asked    int
	calls    []string
	returned []string
	refuses  int // returns that it refuses
}

func (s *script) Ask(_ context.Context, r *Request, next Message) (Message, error) {
	if s.asked == len(s.turns) {
		return Message{}, errors.New("the script is over")
	}
	answer := s.turns[s.asked]
	s.asked++
	answer.Repair(s.asked)
	r.Messages = append(r.Messages, next, answer)
	return answer, nil
}

func (s *script) Call(_ context.Context, name string, arguments json.RawMessage) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name+string(arguments))
	return "answer to " + string(arguments), false
}

func (s *script) Return(_ context.Context, message string) error {
	if s.refuses > 0 {
		s.refuses--
		return errors.New("it was not taken")
	}
	s.returned = append(s.returned, message)
	return nil
}

func (s *script) Left() (string, string, error) {
	if s.left == nil {
		return "much", "", nil
	}
	why, err := s.left(s.asked)
	return "much", why, err
}

func calls(all ...string) Message {
	m := Message{Role: "assistant"}
	for _, c := range all {
		name, input, _ := strings.Cut(c, " ")
		m.Content = append(m.Content, Block{Type: ToolUse, Name: name, Input: json.RawMessage(input)})
	}
	return m
}

func words(text string) Message {
	return Message{Role: "assistant", Content: []Block{TextBlock(text)}}
}

func TestEnds(t *testing.T) {
	done := calls(`branch_return {"message":"done"}`)
	for name, x := range map[string]struct {
		*script
		want  string // the message
		fault string
		made  int
	}{
		"return":                        {script: &script{turns: []Message{calls(`a {"n":1}`, `b {}`), done}}, want: "done", made: 2},
		"text":                          {script: &script{turns: []Message{words("so")}}, want: "so"},
		"empty, then return":            {script: &script{turns: []Message{words(""), done}}, want: "done"},
		"empty twice":                   {script: &script{turns: []Message{words(""), words("")}}, fault: "no message"},
		"a message that is not taken":   {script: &script{turns: []Message{done, done}, refuses: 1}, want: "done"},
		"return without a message":      {script: &script{turns: []Message{calls(`branch_return {}`), done}}, want: "done"},
		"the same call":                 {script: &script{turns: []Message{calls(`a {}`, `a {}`, `a {}`), done}}, want: "done", made: 3},
		"never returns":                 {script: &script{turns: slices.Repeat([]Message{calls(`a {}`)}, 9)}, fault: "no message", made: 3},
		"says something, never returns": {script: &script{turns: []Message{{Content: append(words("I").Content, calls(`a {}`, `a {}`, `a {}`).Content...)}, calls(`a {}`)}}, want: "[not returned by the model; its last words:] I", made: 3},
		"turns":                         {script: &script{turns: []Message{calls(`a {"n":1}`), calls(`a {"n":2}`), calls(`a {"n":3}`), calls(`a {"n":4}`), done}}, want: "done", made: 4},
		"the budget": {script: &script{turns: []Message{calls(`a {}`), done}, left: func(asked int) (string, error) {
			return strings.Repeat("spent", asked), nil
		}}, want: "done", made: 1},
		"nobody waits": {script: &script{turns: []Message{calls(`a {}`)}, left: func(asked int) (string, error) {
			return "", errors.New("gone")
		}}, fault: "gone"},
		"no JSON": {script: &script{turns: []Message{calls(`a {"n`), done}}, want: "done"},
	} {
		t.Run(name, func(t *testing.T) {
			s := x.script
			err := (&Run{Branch: s, Prompt: "look", MaxTurns: 5}).Do(t.Context())
			if got := fmt.Sprint(err); (err != nil) != (x.fault != "") || !strings.Contains(got, x.fault) {
				t.Errorf("Do = %v, want %q", err, x.fault)
			}
			if got := strings.Join(s.returned, "|"); got != x.want {
				t.Errorf("returned %q, want %q", got, x.want)
			}
			if len(s.calls) != x.made {
				t.Errorf("made %q, want %d", s.calls, x.made)
			}
		})
	}
}

// Each call of a turn has an answer, in the order of the calls.
func TestAnswers(t *testing.T) {
	r := Run{Branch: &script{}}
	m := calls(`a {"n":1}`, `branch_return {}`, `b no`, `c {"n":2}`)
	m.Repair(1)
	got := r.make(t.Context(), m.calls(), nil)
	for i, want := range []string{`answer to {"n":1}`, "needs message", "no JSON object: no", `answer to {"n":2}`} {
		if got[i].ToolUseID != m.Content[i].ID || got[i].IsError != (i == 1 || i == 2) || !strings.Contains(got[i].Content[0].Text, want) {
			t.Errorf("answer %d = %+v, want %q", i, got[i], want)
		}
	}
}

// Whatever a model writes, its message can be sent again: calls have ids and inputs that are JSON objects.
func FuzzRepair(f *testing.F) {
	for _, input := range []string{"", "{}", " {\"a\":1} ", "[1]", "nul", "{\"a\":", "\"x\"", "{}{}", "\xff"} {
		f.Add([]byte(input), "")
	}
	f.Fuzz(func(t *testing.T, input []byte, id string) {
		m := Message{Role: "assistant", Content: []Block{TextBlock("x"), {Type: ToolUse, ID: id, Name: "a", Input: bytes.Clone(input)}}}
		m.Repair(3)
		b := m.Content[1]
		var object map[string]json.RawMessage
		if err := json.Unmarshal(b.Input, &object); err != nil || object == nil || b.ID == "" {
			t.Fatalf("Repair(%q) = %q, id %q: %v", input, b.Input, b.ID, err)
		}
		if _, err := json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		if wrong := len(bytes.TrimSpace(input)) > 0 && json.Unmarshal(input, &object) != nil; wrong != (b.Text != "") {
			t.Errorf("of %q Text is %q", input, b.Text)
		}
	})
}
