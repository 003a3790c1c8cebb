//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// The fake upstream and the client are held against each other without the
// product between them, so that a fault found later is not theirs.
func TestFakeserverDirect(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		var c *mcpclient.Client
		if transport == "stdio" {
			var err error
			if c, err = mcpclient.Stdio(exec.Command(fakeserverBin, "-era", "both", "-record", file), era); err != nil {
				t.Fatal(err)
			}
		} else {
			c = mcpclient.HTTP(fakeserverHTTP(t, "-era", "both", "-record", file), era)
		}
		var mu sync.Mutex
		var seen []string
		c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, m.Method)
			if m.ID != nil {
				return json.RawMessage(`{"action":"decline","n":1.0}`), nil
			}
			return nil, nil
		}
		startHost(t, ctx, c)
		if got := text(t, c, ctx, "echo", `{"n":9007199254740993}`); !strings.Contains(got, `{"n":9007199254740993}`) {
			t.Errorf("echo = %s", got)
		}
		m := tool(t, c, ctx, "raw", `{"result":{"resultType":"complete","b":1.0,"a":"\ud83d"}}`)
		if string(m.Result) != `{"resultType":"complete","b":1.0,"a":"\ud83d"}` {
			t.Errorf("raw = %s", m.Result)
		}
		call(t, c, ctx, "tools/call", `{"name":"progress","arguments":{"count":3},"_meta":{"progressToken":"p"}}`)
		if n := count(seen, "notifications/progress"); n != 3 {
			t.Errorf("%d progress notifications before the result, want 3", n)
		}
		if era == mcpclient.Legacy {
			if got := text(t, c, ctx, "elicit", `{"params":{"message":"?"}}`); got != `{"action":"decline","n":1.0}` {
				t.Errorf("elicit = %s", got)
			}
		} else if m := tool(t, c, ctx, "elicit", `{}`); !strings.Contains(string(m.Result), "input_required") {
			t.Errorf("elicit = %s", m.Result)
		}
		slowIsCancelled(t, ctx, c, transport, era, "slow", file)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, f := range c.Faults() {
			t.Error(f)
		}
	})
}

// slowIsCancelled starts a slow call, cancels it as the era demands, and waits
// until the fake upstream has noticed.
func slowIsCancelled(t *testing.T, ctx context.Context, c *mcpclient.Client, transport string, era mcpclient.Era, name, file string) {
	t.Helper()
	slowIsCancelledAs(t, ctx, c, transport, era, fmt.Sprintf(`{"name":%q,"arguments":{"ms":50000}}`, name), file)
}

// slowIsCancelledAs is slowIsCancelled for a call with these params.
func slowIsCancelledAs(t *testing.T, ctx context.Context, c *mcpclient.Client, transport string, era mcpclient.Era, params, file string) {
	t.Helper()
	callCtx, abort := context.WithCancel(ctx)
	defer abort()
	id, wait, err := c.Send(callCtx, "tools/call", params)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream has the call", func() bool {
		return strings.Contains(strings.Join(recordedMethod(t, file, "tools/call"), "\n"), `"slow"`)
	})
	if transport == "http" && era == mcpclient.Modern {
		abort()
	} else if err := c.Cancel(ctx, id, "test is over"); err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream's call ends", func() bool {
		return strings.Contains(strings.Join(recorded(t, file), "\n"), "slow ended")
	})
	abort()
	if m, err := wait(); err == nil {
		t.Errorf("the cancelled call was answered: %s%s", m.Result, m.Error)
	}
}

// until waits for something that happens in another process.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 20 s in vain: %s", what)
		}
	}
}

// call sends a request that must not end in an error.
func call(t *testing.T, c *mcpclient.Client, ctx context.Context, method, params string) mcpclient.Message {
	t.Helper()
	m, err := c.Call(ctx, method, params)
	if err != nil {
		t.Fatal(err)
	}
	if m.Error != nil {
		t.Fatalf("%s %.300s: error %s", method, params, m.Error)
	}
	return m
}

// tool calls a tool; a result with isError is fine, a JSON-RPC error is not.
func tool(t *testing.T, c *mcpclient.Client, ctx context.Context, name, args string) mcpclient.Message {
	t.Helper()
	return call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, args))
}

// toolResult is the part of a tools/call result that a host reads.
type toolResult struct {
	Content           []struct{ Type, Text string }
	StructuredContent json.RawMessage
	IsError           bool
}

func parseResult(t *testing.T, m mcpclient.Message) toolResult {
	t.Helper()
	var r toolResult
	if err := json.Unmarshal(m.Result, &r); err != nil {
		t.Fatalf("result %s: %v", m.Result, err)
	}
	return r
}

// text calls a tool and returns the text of its one block.
func text(t *testing.T, c *mcpclient.Client, ctx context.Context, name, args string) string {
	t.Helper()
	m := tool(t, c, ctx, name, args)
	r := parseResult(t, m)
	if len(r.Content) != 1 || r.IsError {
		t.Fatalf("%s %.300s = %s", name, args, m.Result)
	}
	return r.Content[0].Text
}

func count(list []string, s string) int {
	n := 0
	for _, e := range list {
		if e == s {
			n++
		}
	}
	return n
}
