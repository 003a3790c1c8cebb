//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// Many calls that each ask the host at once, over one stdio upstream and with
// no GET stream: every question is answered, and every answer finds its call.
func TestManyQuestionsAtOnce(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), ""))
			c := g.unstarted(transport, mcpclient.Legacy)
			c.Capabilities = `{"elicitation":{}}`
			c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
				var p struct{ Message string }
				_ = json.Unmarshal(m.Params, &p)
				return json.RawMessage(`{"action":"accept","content":{"to":` + jsonText(p.Message) + `}}`), nil
			}
			startHost(t, ctx, c)
			call(t, c, ctx, "tools/list", `{}`)
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					message := strings.Repeat("?", i+1)
					m, err := c.Call(ctx, "tools/call", `{"name":"fake__elicit","arguments":{"params":{"message":"`+message+`"}}}`)
					if want := jsonText(`{"action":"accept","content":{"to":"` + message + `"}}`); err != nil || !strings.Contains(string(m.Result), want) {
						t.Errorf("elicit %d = %.200s %s, %v", i, m.Result, m.Error, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// Notifications that foldgate does not know pass to the upstream, in both eras.
func TestUnknownNotifications(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fakeConfig(file, ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		if err := c.Notify(ctx, "notifications/x/strange", `{"n":1.0}`); err != nil {
			t.Fatal(err)
		}
		until(t, "the upstream gets the notification", func() bool {
			return len(recordedMethod(t, file, "notifications/x/strange")) == 1
		})
	})
}
