package llmstub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// stream writes server-sent events. After an error it writes nothing more: the
// host has gone.
type stream struct {
	w    http.ResponseWriter
	fail error
	cut  bool // the stream ends where its end is told
}

var errCut = errors.New("cut")

type object = map[string]any

// event sends one event; name may be empty.
func (s *stream) event(name string, data any) {
	b, err := json.Marshal(data)
	if err != nil {
		s.fail = err
	}
	s.line(name, string(b))
}

func (s *stream) line(name, data string) {
	if s.cut && (data == "[DONE]" || strings.Contains(data, `"finish_reason":"`) || strings.Contains(data, `"message_delta"`)) {
		s.fail = errCut
	}
	if s.fail != nil {
		return
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	if _, s.fail = fmt.Fprintf(s.w, "%sdata: %s\n\n", name, data); s.fail == nil {
		s.fail = http.NewResponseController(s.w).Flush()
	}
}

// halves splits a text in two pieces, as streams bring them.
func halves(text string) []string {
	r := []rune(text)
	if len(r) < 2 {
		return []string{text}
	}
	return []string{string(r[:len(r)/2]), string(r[len(r)/2:])}
}
