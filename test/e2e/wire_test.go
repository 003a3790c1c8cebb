//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// Results and errors that a proxy of typed messages loses or breaks. Each must
// arrive byte for byte.
var fragile = []struct{ name, result string }{
	{"unknown content type", `{"content":[{"type":"text","text":"ok"},{"type":"video","data":"x"}]}`},
	{"unknown fields", `{"content":[{"type":"text","text":"ok","annotations":{"priority":0,"future":1.0},"new":[]}],"other":{"b":1,"a":2}}`},
	{"task", `{"content":[],"task":{"taskId":"t1","status":"working"}}`},
	{"numbers", `{"content":[],"structuredContent":{"z":9007199254740993,"a":1.0,"huge":123456789012345678901234567890,"e":1E+2,"m":-0.0}}`},
	{"nulls and zeros", `{"content":[{"type":"text","text":""}],"structuredContent":null,"isError":false,"_meta":{}}`},
	{"lone surrogate and escapes", `{"content":[{"type":"text","text":"\ud83d <b>&\u0041\/ \u2028 é"}]}`},
	{"image with odd base64", `{"content":[{"type":"image","data":"_-8=\n","mimeType":"image/png"}]}`},
	{"embedded resource", `{"content":[{"type":"resource","resource":{"uri":"a:b","text":""}},{"type":"resource_link","uri":"x","name":"","description":""}]}`},
	{"structured array", `{"content":[],"structuredContent":[1,"two",null,{"k":[]}]}`},
	{"structured string", `{"content":[],"structuredContent":"text"}`},
	{"tool error", `{"isError":true,"content":[{"type":"text","text":"went wrong"}],"x":1}`},
	{"no content", `{"future":true}`},
	{"meta", `{"content":[],"_meta":{"com.example/k":1.0,"traceparent":"x","progressToken":9007199254740993}}`},
	{"duplicate keys", `{"content":[],"a":1,"a":2}`},
	{"deep", `{"content":[],"structuredContent":` + strings.Repeat(`[`, 1000) + strings.Repeat(`]`, 1000) + `}`},
}

func TestResultsAreByteExact(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		for _, tt := range fragile {
			want := tt.result
			if era == mcpclient.Modern {
				want = `{"resultType":"complete",` + want[1:]
			}
			m := tool(t, c, ctx, "fake__raw", `{"result":`+want+`}`)
			if string(m.Result) != want {
				t.Errorf("%s: got\n%.300s\nwant\n%.300s", tt.name, m.Result, want)
			}
		}
		for _, want := range []string{
			`{"code":-32042,"message":"elsewhere","data":{"n":1.0,"z":9007199254740993},"future":null}`,
			`{"code":7,"message":"","data":null}`, `{"code":-32000,"message":"<b>\ud83d"}`,
		} {
			m, err := c.Call(ctx, "tools/call", `{"name":"fake__raw","arguments":{"error":`+want+`}}`)
			if err != nil || string(m.Error) != want {
				t.Errorf("error %s, %v, want %s", m.Error, err, want)
			}
		}
	})
}

// The definition of a tool passes unchanged, except for the prefix and branch_id.
func TestDefinitionsAreByteExact(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.connect(ctx, transport, era)
		var list struct{ Tools []json.RawMessage }
		unmarshal(t, call(t, c, ctx, "tools/list", `{}`).Result, &list)
		branchID := regexp.MustCompile(`,"branch_id":\{[^{}]*\}`)
		want := `{"name":"fake__echo","description":"test tool","inputSchema":{"type":"object","properties":{"n":{"type":"number","maximum":9007199254740993}},"x-future":1.0},"future":{"z":1,"a":2}}`
		for _, raw := range list.Tools {
			if strings.HasPrefix(string(raw), `{"name":"fake__echo"`) {
				if got := branchID.ReplaceAllString(string(raw), ""); got != want {
					t.Errorf("definition is\n%s\nwant\n%s", raw, want)
				}
				return
			}
		}
		t.Errorf("fake__echo is not listed: %.500s", list.Tools)
	})
}

// Methods that foldgate does not know pass to the one upstream there is.
func TestUnknownMethods(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		m, err := c.Call(ctx, "x/strange", `{"n":9007199254740993,"t":"\ud83d"}`)
		if err != nil || !strings.Contains(string(m.Result), `"n":9007199254740993,"t":"\ud83d"`) {
			t.Errorf("x/strange = %s %s, %v", m.Result, m.Error, err)
		}
		m, err = c.Call(ctx, "y/unknown", `{}`)
		if want := `{"code":-32601,"message":"method not found","data":{"method":"y/unknown","n":1.0}}`; err != nil || string(m.Error) != want {
			t.Errorf("y/unknown = %s %s, %v, want %s", m.Result, m.Error, err, want)
		}
	})
}

// A server request in the middle of a call reaches the host of the call unchanged, and so does
// the answer on its way back.
func TestQuestionsToTheHost(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), ""))
			c := g.unstarted(transport, mcpclient.Legacy)
			c.Capabilities = `{"elicitation":{},"sampling":{},"roots":{}}`
			const answer = `{"action":"accept","content":{"n":9007199254740993},"future":"\ud83d"}`
			var mu sync.Mutex
			asked := map[string]int{}
			var params []string
			c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
				mu.Lock()
				defer mu.Unlock()
				asked[m.Method]++
				params = append(params, string(m.Params))
				return json.RawMessage(answer), nil
			}
			startHost(t, ctx, c)
			call(t, c, ctx, "tools/list", `{}`)
			const question = `{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993}}},"future":1.0}`
			for name, method := range map[string]string{"elicit": "elicitation/create", "sample": "sampling/createMessage", "roots": "roots/list", "unknown": "x/custom"} {
				if got := text(t, c, ctx, "fake__"+name, `{"params":`+question+`}`); got != answer {
					t.Errorf("%s: the upstream got %s, want %s", name, got, answer)
				}
				if asked[method] != 1 {
					t.Errorf("%s: the host was asked %v", name, asked)
				}
			}
			if asked["notifications/x/custom"] != 1 {
				t.Errorf("the unknown notification did not arrive: %v", asked)
			}
			if !strings.Contains(strings.Join(params, "\n"), question) {
				t.Errorf("no question arrived as it was: %s", params)
			}
		})
	}
}

// Progress and log messages arrive before the result, with the host's token;
// a cancelled call ends at the upstream and is not answered.
func TestNotificationsAndCancellation(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fakeConfig(file, ""))
		c := g.connect(ctx, transport, era)
		var mu sync.Mutex
		var got []string
		c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, m.Method+" "+string(m.Params))
			return nil, nil
		}
		call(t, c, ctx, "tools/list", `{}`)
		call(t, c, ctx, "tools/call", `{"name":"fake__progress","arguments":{"count":3},"_meta":{"progressToken":9007199254740993}}`)
		var want []string
		for i := 1; i <= 3; i++ {
			want = append(want, fmt.Sprintf(`notifications/progress {"progressToken":9007199254740993,"progress":%d,"total":3,"message":"","future":1.0}`, i))
		}
		mu.Lock()
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("before the result came\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		mu.Unlock()
		slowIsCancelled(t, ctx, c, transport, era, "fake__slow", file)
		if transport == "stdio" || era == mcpclient.Legacy {
			if !strings.Contains(strings.Join(recorded(t, file), "\n"), "test is over") {
				t.Error("the reason of the cancellation did not reach the upstream")
			}
		}
	})
}

// An upstream that dies in the middle of a call fails that call within a
// second; the next call in the same session succeeds.
func TestUpstreamCrash(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fakeConfig(file, "  other: {command: ["+fakeserverBin+"]}\n"))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		fastest := time.Hour
		slow := func() int { return strings.Count(strings.Join(recordedMethod(t, file, "tools/call"), "\n"), `"slow"`) }
		for _, how := range []string{"exit", "kill -9", "kill -9"} {
			pid, err := strconv.Atoi(text(t, c, ctx, "fake__pid", `{}`))
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			name, args := "fake__crash", `{}`
			if how == "kill -9" {
				name, args = "fake__slow", `{"ms":50000}`
			}
			before := slow()
			_, wait, err := c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, args))
			if err != nil {
				t.Fatal(err)
			}
			if how == "kill -9" {
				until(t, "the call is at the upstream", func() bool { return slow() > before })
				start = time.Now()
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			m, err := wait()
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			if m.Error == nil && !parseResult(t, m).IsError {
				t.Errorf("%s: the call in flight = %s", how, m.Result)
			}
			fastest = min(fastest, took)
			t.Logf("%s: after %v: %.300s%.300s", how, took.Round(time.Millisecond), m.Result, m.Error)
			if got := text(t, c, ctx, "other__text", `{"text":"alive"}`); got != "alive" {
				t.Errorf("%s: the other upstream says %q", how, got)
			}
			start = time.Now()
			next, err := strconv.Atoi(text(t, c, ctx, "fake__pid", `{}`))
			if err != nil || next == pid {
				t.Errorf("%s: the next call came from process %d, %v; the old one was %d", how, next, err, pid)
			}
			t.Logf("%s: the next call succeeded after %v", how, time.Since(start).Round(time.Millisecond))
		}
		// The fastest, since other work on the machine can delay any one of them.
		if fastest > time.Second {
			t.Errorf("the calls in flight failed after %v at best, want within a second", fastest)
		}
	})
}

// A list that changes at an upstream is announced, once or more, and fetched again.
func TestListChanged(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), ""))
			c := g.connect(ctx, transport, mcpclient.Legacy)
			changed := make(chan struct{}, 100)
			c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
				if m.Method == "notifications/tools/list_changed" {
					changed <- struct{}{}
				}
				return nil, nil
			}
			if transport == "http" {
				if err := c.Listen(); err != nil {
					t.Fatal(err)
				}
			}
			if got := call(t, c, ctx, "tools/list", `{}`); strings.Contains(string(got.Result), "fake__extra") {
				t.Fatalf("fake__extra is listed before it is there")
			}
			text(t, c, ctx, "fake__list_changed", `{}`)
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatal("no notifications/tools/list_changed")
			}
			if got := call(t, c, ctx, "tools/list", `{}`); !strings.Contains(string(got.Result), "fake__extra") {
				t.Errorf("fake__extra is not listed after the change")
			}
			if got := text(t, c, ctx, "fake__extra", `{"text":"new"}`); got != "new" {
				t.Errorf("fake__extra = %q", got)
			}
		})
	}
}

// A child's whole process group ends with foldgate, also the processes that a shell or npx
// started in it.
func TestNoOrphans(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [sh, -c, 'sleep 1000 & %s; true']}\n", fakeserverBin))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	pid, err := strconv.Atoi(text(t, c, ctx, "fake__pid", `{}`))
	if err != nil {
		t.Fatal(err)
	}
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	if own, _ := syscall.Getpgid(0); group == own {
		t.Fatalf("the upstream is in the test's own process group %d", group)
	}
	g.stop()
	until(t, "the upstream's process group is gone", func() bool {
		return syscall.Kill(-group, 0) == syscall.ESRCH
	})
}
