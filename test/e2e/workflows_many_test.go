//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// Ten thousand workflows opened at once have ten thousand handles (W14).
func TestWorkflowManyHandles(t *testing.T) {
	t.Parallel()
	const all, hosts = 10_000, 16
	g := newGateway(t, signalsConfig(recordFile(t), "")+"trace: {sync: never, payload: none}\n")
	at := g.http()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: hosts}}
	t.Cleanup(client.CloseIdleConnections)
	open := func(n int64) (string, error) {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"signals__get_signals","arguments":{"signal_spec":"any"},`+
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, n)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, bytes.NewReader([]byte(body)))
		if err != nil {
			return "", err
		}
		for k, v := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
			"Mcp-Method": "tools/call", "Mcp-Name": "signals__get_signals",
		} {
			req.Header.Set(k, v)
		}
		res, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		var m struct{ Result flowResult }
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if id := m.Result.handle(); err != nil || !contextID.MatchString(id) || m.Result.inText() != id {
			return "", fmt.Errorf("call %d: %v: %.300s", n, err, text)
		}
		return m.Result.handle(), nil
	}
	var begun atomic.Int64
	ids := make([][]string, hosts)
	var wg sync.WaitGroup
	for h := range hosts {
		wg.Go(func() {
			for n := begun.Add(1); n <= all && !t.Failed(); n = begun.Add(1) {
				id, err := open(n)
				if err != nil {
					t.Error(err)
					return
				}
				ids[h] = append(ids[h], id)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, list := range ids {
		for _, id := range list {
			if seen[id] {
				t.Errorf("handle %s was given twice", id)
			}
			seen[id] = true
		}
	}
	if len(seen) != all {
		t.Errorf("%d different handles, want %d", len(seen), all)
	}
}
