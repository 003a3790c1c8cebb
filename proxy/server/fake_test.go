package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

// fakeRouter is a router whose behaviour is a func per call of a server. It checks
// that no exchange outlives its session unseen: open and closed are counted.
type fakeRouter struct {
	onServe  func(ctx context.Context, ex *Request) wire.Message
	onNotify func(m wire.Message)
	onCheck  func(h http.Header) *wire.Error // nil: all headers are right
	closing  time.Duration                   // how long a session takes to close
	onOpen   func()                          // nil: nothing more happens
	onBegin  func(ex *Request)               // likewise

	mu       sync.Mutex
	peers    []Peer
	notified []string
	answers  chan wire.Message
	closed   []string // reasons
	began    []string // ids

	serving atomic.Int64
}

func newFakeRouter(serve func(ctx context.Context, ex *Request) wire.Message) *fakeRouter {
	if serve == nil {
		serve = echo
	}
	return &fakeRouter{onServe: serve, answers: make(chan wire.Message, 1024)}
}

// echo answers with the method and the params of the request.
func echo(_ context.Context, ex *Request) wire.Message {
	if ex.Msg.Method == "initialize" {
		return wire.Message{Result: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"fake","version":"1"}}`)}
	}
	params := ex.Msg.Params
	if params == nil {
		params = json.RawMessage("null")
	}
	return wire.Message{Result: json.RawMessage(fmt.Sprintf(`{"method":%s,"params":%s}`, rawjson.Quote(ex.Msg.Method), params))}
}

func (c *fakeRouter) Open(p Peer) Session {
	if c.onOpen != nil {
		c.onOpen()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peers = append(c.peers, p)
	return &fakeSession{fakeRouter: c}
}

func (c *fakeRouter) CheckHeaders(_ *Request, h http.Header) *wire.Error {
	if c.onCheck == nil {
		return nil
	}
	return c.onCheck(h)
}

func (*fakeRouter) Rejected(Rejection) {}

// fakeSession is a session of a fakeRouter.
type fakeSession struct {
	*fakeRouter
	revision atomic.Value
}

func (c *fakeSession) Begin(ctx context.Context, ex *Request) Pending {
	c.mu.Lock()
	c.began = append(c.began, string(ex.Msg.ID))
	c.mu.Unlock()
	if c.onBegin != nil {
		c.onBegin(ex)
	}
	return fakePending{c, ctx, ex}
}

type fakePending struct {
	c   *fakeSession
	ctx context.Context
	ex  *Request
}

func (p fakePending) Serve() Reply {
	p.c.serving.Add(1)
	defer p.c.serving.Add(-1)
	reply := p.c.onServe(p.ctx, p.ex)
	if reply.Result != nil || reply.Error != nil {
		reply.ID = p.ex.Msg.ID
	}
	if v, ok := rawjson.GetString(reply.Result, "protocolVersion"); ok {
		p.c.revision.Store(v)
	}
	return Reply{Message: reply}
}

func (fakePending) Sent() {}

func (c *fakeSession) Notify(m wire.Message) {
	if c.onNotify != nil {
		c.onNotify(m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = append(c.notified, m.Method)
}

func (c *fakeSession) HandleResponse(m wire.Message) { c.answers <- m }

func (c *fakeSession) Revision() string {
	v, _ := c.revision.Load().(string)
	return v
}

func (c *fakeSession) Close(reason string) {
	time.Sleep(c.closing)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = append(c.closed, reason)
}

// counts returns how many sessions were opened and closed.
func (c *fakeRouter) counts() (opened, closed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.peers), len(c.closed)
}

// lastPeer returns the peer of the session opened last.
func (c *fakeRouter) lastPeer() Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peers[len(c.peers)-1]
}

// testLog sends what a server logs to the test's own log.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// gate is a core whose calls wait until the test lets them go.
type gate struct {
	*fakeRouter
	started chan *Request
	release chan wire.Message
}

func newGate() *gate {
	g := &gate{started: make(chan *Request, 16), release: make(chan wire.Message, 16)}
	g.fakeRouter = newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		if ex.Msg.Method != "wait" {
			return echo(ctx, ex)
		}
		g.started <- ex
		select {
		case r := <-g.release:
			return r
		case <-ctx.Done():
			return wire.Message{}
		}
	})
	return g
}

const waitCall = `{"jsonrpc":"2.0","id":7,"method":"wait"}`

var doneReply = wire.Message{Result: json.RawMessage(`"done"`)}

const doneText = `{"jsonrpc":"2.0","id":7,"result":"done"}`

// withTokens lets in the clients with these tokens.
func withTokens(tokens []auth.Token) func() *Access {
	return func() *Access { return &Access{Auth: auth.New(auth.Options{Tokens: tokens})} }
}

// token is a static token.
func token(principal, text string) auth.Token {
	return auth.Token{Principal: principal, Digest: sha256.Sum256([]byte(text))}
}
