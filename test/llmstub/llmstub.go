// Package llmstub is a model that says what a test wrote down: a server on
// loopback that speaks Anthropic's Messages, OpenAI's chat completions and
// Responses, and Gemini's interface, all streamed, and keeps every request that
// it got.
//
// A host sends its model the whole of its context with every request. So what
// a tool call cost a context is the difference between two requests, and what
// never reached a context is in none of them.
//
//	s, err := llmstub.Start(
//		llmstub.Agent{Name: "main", Play: llmstub.Script(
//			llmstub.Use(llmstub.Call{Name: "read_file", Arguments: `{"path":"a.txt"}`}),
//			llmstub.Say("done"),
//		)},
//	)
//	defer s.Close()
//	// run the host with s.URL() as the base URL of its provider
//	for _, r := range s.Requests() { … }
package llmstub

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Agent answers the requests of one context.
type Agent struct {
	// Name is noted in the requests that the agent answered.
	Name string
	// Match reports whether a request is the agent's; nil takes every request.
	// The first agent that matches answers.
	Match func(Request) bool
	// Play returns the model's next turn. Several requests may call it at once.
	Play func(Request) (Reply, error)
}

// Reply is one turn of the model: a text, then calls, either may be missing.
type Reply struct {
	Text  string
	Calls []Call
	// Status is the HTTP status of an answer without a turn, 0 for a turn.
	Status int
	// Cut ends the stream in the middle.
	Cut bool
	// Input and Output are the usage that the stub reports; 0 means 1.
	Input, Output int
}

// Call is a use of a tool. Input, where it is not empty, makes it a call of a
// tool that takes free text (OpenAI's custom tools); otherwise Arguments is a
// JSON object. ID is made up where it is empty.
type Call struct {
	ID, Name, Namespace string
	Arguments           string
	Input               string
}

// Turn is one line of a script. It may look at the request, for instance for
// an id that an earlier result brought.
type Turn func(Request) (Reply, error)

// Script returns a Play that chooses the turn by the number of turns that the
// model has already had in the request's context. Past the end it is an error.
func Script(turns ...Turn) func(Request) (Reply, error) {
	return func(r Request) (Reply, error) {
		n := r.Turns()
		if n >= len(turns) {
			return Reply{}, fmt.Errorf("the script has %d turns, the context %d already", len(turns), n)
		}
		return turns[n](r)
	}
}

// Say is a turn that ends the model's work with a text.
func Say(text string) Turn {
	return func(Request) (Reply, error) { return Reply{Text: text}, nil }
}

// Use is a turn of one call.
func Use(c Call) Turn {
	return func(Request) (Reply, error) { return Reply{Calls: []Call{c}}, nil }
}

// Server is a running stub. Its methods may be called concurrently.
type Server struct {
	agents []Agent
	http   *http.Server
	url    string
	served chan error

	mu       sync.Mutex // guards what follows
	requests []Request
	faults   []string
	calls    int // made up ids
}

// Start listens on a free port of 127.0.0.1. Close ends it.
func Start(agents ...Agent) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{agents: agents, url: "http://" + l.Addr().String(), served: make(chan error, 1)}
	mux := http.NewServeMux()
	for _, d := range []dialect{messages{}, chat{}, responses{}, generate{}} {
		mux.HandleFunc("POST /v1/"+d.path(), func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, d) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error":{"type":"not_found_error","message":"the stub serves no `+r.URL.Path+`"}}`, http.StatusNotFound)
	})
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { s.served <- s.http.Serve(l) }()
	return s, nil
}

// URL is the base URL for a provider, with the version: http://127.0.0.1:…/v1.
func (s *Server) URL() string { return s.url + "/v1" }

// Close ends the server and waits for it.
func (s *Server) Close() error {
	err := s.http.Close()
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Requests returns the requests so far, in order of arrival; with names, only those that the
// agents of these names answered.
func (s *Server) Requests(names ...string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Request
	for _, r := range s.requests {
		if len(names) == 0 || slices.Contains(names, r.Agent) {
			found = append(found, r)
		}
	}
	return found
}

// Faults returns the faults: requests that could not be read, that no agent took, or that went
// past the end of a script.
func (s *Server) Faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.faults)
}

// dialect is one of the interfaces of model providers.
type dialect interface {
	path() string
	// read fills the parts of a request that do not depend on its agent.
	read(body []byte) (Request, error)
	// write streams a reply.
	write(w *stream, id string, reply Reply)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, d dialect) {
	body, err := io.ReadAll(r.Body)
	var q Request
	if err == nil {
		q, err = d.read(body)
	}
	var reply Reply
	if err == nil {
		q.API, q.Body, q.Header = d.path(), body, r.Header
		reply, err = s.answer(&q)
	}
	s.mu.Lock()
	s.requests = append(s.requests, q)
	id := fmt.Sprintf("stub_%d", len(s.requests))
	for i := range reply.Calls {
		if s.calls++; reply.Calls[i].ID == "" {
			reply.Calls[i].ID = fmt.Sprintf("call_%04d", s.calls)
		}
	}
	if err != nil {
		s.faults = append(s.faults, err.Error())
	}
	s.mu.Unlock()
	if err != nil {
		// Hosts repeat a request after 5xx or 429, but not after 400.
		http.Error(w, `{"type":"error","error":{"type":"invalid_request_error","message":"the script failed, see Faults"}}`, http.StatusBadRequest)
		return
	}
	if reply.Status != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(reply.Status)
		_, _ = fmt.Fprintf(w, `{"type":"error","error":{"type":"stub_error","message":"the stub answers %d"}}`, reply.Status)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	reply.Input, reply.Output = max(reply.Input, 1), max(reply.Output, 1)
	d.write(&stream{w: w, cut: reply.Cut}, id, reply)
}

func (s *Server) answer(q *Request) (Reply, error) {
	if !q.Streamed {
		return Reply{}, fmt.Errorf("%s: a request without \"stream\": true, which the stub does not answer", q.API)
	}
	for _, a := range s.agents {
		if a.Match != nil && !a.Match(*q) {
			continue
		}
		q.Agent = a.Name
		reply, err := a.Play(*q)
		if err != nil {
			err = fmt.Errorf("agent %s: %w; the context ends with %q", a.Name, err, tail(q.Messages))
		}
		reply.Calls = slices.Clone(reply.Calls) // their ids are set
		return reply, err
	}
	return Reply{}, fmt.Errorf("no agent takes the request of %d messages that ends with %q", len(q.Messages), tail(q.Messages))
}

// tail is the end of a context, to be shown in a fault.
func tail(all []Message) string {
	if len(all) == 0 {
		return ""
	}
	text := []rune(strings.TrimSpace(all[len(all)-1].Text))
	return string(text[max(0, len(text)-300):])
}
