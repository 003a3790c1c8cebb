package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/bridge"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// legacyConn is a server that asks for a name before it answers.
type legacyConn struct {
	conn.Conn
	answers chan wire.Message
}

func (c legacyConn) Info() conn.Info { return conn.Info{Version: wire.VersionLegacy} }

func (c legacyConn) Call(_ context.Context, r *conn.Request) (wire.Message, error) {
	r.Receiver.Message(wire.Message{ID: json.RawMessage(`1`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"name?"}`)})
	return wire.Message{Result: (<-c.answers).Result}, nil
}

func (c legacyConn) Send(_ context.Context, m wire.Message) error {
	c.answers <- m
	return nil
}

// host drops what a server sends beside its responses.
type host struct{}

func (host) Message(wire.Message)         {}
func (host) ResponseArrived(wire.Message) {}
func (host) Unsolicited(wire.Message)     {}
func (host) Undelivered(conn.Undelivered) {}

func Example() {
	lifetime, end := context.WithCancel(context.Background())
	b := bridge.New(lifetime, "", slog.New(slog.DiscardHandler))
	defer b.Wait()
	defer end()

	modern, _ := b.Wrap("up", conn.Host{Shared: true}, legacyConn{answers: make(chan wire.Message)}, host{})
	call := func(params string) wire.Message {
		m, err := modern.Call(lifetime, &conn.Request{Method: "tools/call", Params: json.RawMessage(params), Receiver: host{}, Call: &interceptor.Call{}})
		if err != nil {
			fmt.Println(err)
		}
		return m
	}
	first := call(`{"name":"greet","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}`)
	var result struct {
		ResultType, RequestState string
		InputRequests            json.RawMessage
	}
	_ = json.Unmarshal(first.Result, &result)
	fmt.Println(result.ResultType, string(result.InputRequests))
	second := call(`{"name":"greet","requestState":"` + result.RequestState + `","inputResponses":{"r1":{"content":[]}}}`)
	fmt.Println(string(second.Result))
	// Output:
	// input_required {"r1":{"method":"elicitation/create","params":{"message":"name?"}}}
	// {"content":[],"resultType":"complete"}
}
