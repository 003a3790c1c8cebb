// Command fakeserver is an upstream MCP server for tests that does exactly what it
// is told, also what no decent server does.
//
//	fakeserver [-era legacy|modern|both] [-http 127.0.0.1:0] [-record FILE]
//	fakeserver -dial 127.0.0.1:PORT
//
// Without -http it speaks on stdio. With it, it prints the URL it listens at on
// its first line of standard output. -record appends every message it receives
// to FILE, one a line, as it came: a test reads there what crossed the wire.
// With -dial the test itself is the server, see dial.go.
//
// Its tools are its script, see tools.go. Methods that begin with "x/" are
// answered with what was sent; other unknown methods get -32601.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/foldgate/foldgate/internal/pollable"
	"github.com/foldgate/foldgate/test/mcpclient"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("fakeserver: ")
	era := flag.String("era", "legacy", "legacy, modern or both")
	addr := flag.String("http", "", "serve streamable HTTP at this loopback address")
	leak := flag.String("leak", "", "a text that turns up in instructions, descriptions, resources and on stderr")
	record := flag.String("record", "", "append every message received to this file")
	answer := flag.String("answer", `{"jsonrpc":"2.0","id":%s`, "how an answer begins")
	can := flag.Bool("can", false, "have a tool for each capability of the client, such as can-sampling.tools, only for clients with it")
	answers := flag.String("answers", "", "a file with a JSON object of results by method, read for each request")
	test := flag.String("dial", "", "be the wire to a test that listens at this address")
	flag.Parse()
	if *test != "" {
		if err := dial(*test); err != nil {
			log.Fatal(err)
		}
		return
	}

	s := &server{legacy: *era != "modern", modern: *era != "legacy", leak: *leak, answer: *answer, can: *can, file: *answers, answers: map[string][2]string{}}
	if s.leak != "" {
		log.Printf("configured with %s", s.leak)
	}
	if *record != "" {
		f, err := os.OpenFile(*record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			log.Fatal(err)
		}
		s.record = f
	}
	var err error
	if *addr != "" {
		err = s.serveHTTP(*addr)
	} else {
		err = s.serveStdio(pollable.File(os.Stdin), os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

type server struct {
	legacy, modern bool
	leak           string
	answer         string // how an answer begins, with %s for the id
	can            bool
	file           string // with answers

	mu      sync.Mutex // guards what follows
	record  *os.File
	answers map[string][2]string   // of the tool raw: results or errors, by the beginning of a method
	extra   bool                   // the tool "extra" is listed
	open    map[*call]listenParams // subscriptions/listen
}

// session is one host session: the process on stdio, a Mcp-Session-Id on HTTP,
// a single request in the modern era on HTTP.
type session struct {
	id   string
	push func(msg []byte) // out of any call; nil where there is no way

	mu      sync.Mutex
	client  json.RawMessage // capabilities that initialize declares
	lastID  int
	pending map[string]chan mcpclient.Message  // requests of ours, by id
	cancels map[string]context.CancelCauseFunc // requests of the host, by id
	early   map[string]error                   // cancellations that came before their request was served
}

func newSession(id string) *session {
	return &session{id: id, pending: map[string]chan mcpclient.Message{}, cancels: map[string]context.CancelCauseFunc{}, early: map[string]error{}}
}

// write appends a message to the record.
func (s *server) write(raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		_, _ = s.record.Write(append(append([]byte(nil), raw...), '\n'))
	}
}

// call is one request of the host at work.
type call struct {
	s       *server
	sess    *session
	m       mcpclient.Message
	isNew   bool              // modern era
	emit    func(msg []byte)  // puts a message on the request's own stream
	rawLine func(text string) // stdio only: writes a line that is no message
}

// serve answers one request. The answer is a complete message, or nil if the
// request was cancelled.
func (s *server) serve(ctx context.Context, c *call) []byte {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.sess.mu.Lock()
	c.sess.cancels[string(c.m.ID)] = cancel
	if cause := c.sess.early[string(c.m.ID)]; cause != nil {
		cancel(cause)
	}
	c.sess.mu.Unlock()
	defer func() {
		c.sess.mu.Lock()
		defer c.sess.mu.Unlock()
		delete(c.sess.cancels, string(c.m.ID))
	}()
	result, errObject := c.dispatch(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case errObject != "":
		return fmt.Appendf(nil, c.s.answer+`,"error":%s}`, c.m.ID, errObject)
	}
	return fmt.Appendf(nil, c.s.answer+`,"result":%s}`, c.m.ID, result)
}

// notified takes a notification of the host.
func (sess *session) notified(m mcpclient.Message) {
	var p struct {
		RequestID json.RawMessage
		Reason    string
	}
	if m.Method != "notifications/cancelled" || json.Unmarshal(m.Params, &p) != nil {
		return
	}
	sess.mu.Lock()
	defer sess.mu.Unlock()
	cause := fmt.Errorf("cancelled: %s", p.Reason)
	if cancel := sess.cancels[string(p.RequestID)]; cancel != nil {
		cancel(cause)
	} else {
		sess.early[string(p.RequestID)] = cause
	}
}

// answered takes the host's response to a request of ours.
func (sess *session) answered(m mcpclient.Message) {
	sess.mu.Lock()
	defer sess.mu.Unlock()
	if ch := sess.pending[string(m.ID)]; ch != nil {
		ch <- m
		delete(sess.pending, string(m.ID))
	}
}

// ask sends a request to the host on the call's stream and returns its answer,
// the whole message as JSON.
func (c *call) ask(ctx context.Context, method, params string) string {
	c.sess.mu.Lock()
	c.sess.lastID++
	id := fmt.Sprintf(`"up-%d"`, c.sess.lastID)
	ch := make(chan mcpclient.Message, 1)
	c.sess.pending[id] = ch
	c.sess.mu.Unlock()
	c.emit(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	select {
	case m := <-ch:
		if m.Error != nil {
			return string(m.Error)
		}
		return string(m.Result)
	case <-ctx.Done():
		return `"cancelled"`
	}
}

// notify sends a notification on the call's stream.
func (c *call) notify(method, params string) {
	c.emit(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
}
