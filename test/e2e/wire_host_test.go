//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/testbin"
)

// rawHost is a host that the test plays itself: it sends lines as they are, and keeps foldgate's
// lines unchanged in got.
type rawHost struct {
	t     *testing.T
	era   mcpclient.Era
	got   chan string
	write func(msg string)
	wait  sync.WaitGroup

	mu      sync.Mutex
	session string // Mcp-Session-Id
}

// startPiped starts cmd and returns the ends of its standard input and output.
func startPiped(t *testing.T, cmd *exec.Cmd) (in io.WriteCloser, out io.Reader) {
	t.Helper()
	in, out, err := testbin.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

// rawStdio starts a gateway as a child.
func rawStdio(t *testing.T, cmd *exec.Cmd, era mcpclient.Era) *rawHost {
	t.Helper()
	h := &rawHost{t: t, era: era, got: make(chan string, 1000)}
	in, out := startPiped(t, cmd)
	h.write = func(msg string) {
		if _, err := io.WriteString(in, msg+"\n"); err != nil {
			t.Error(err)
		}
	}
	h.wait.Go(func() {
		br := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				return
			}
			h.got <- strings.TrimSuffix(line, "\n")
		}
	})
	t.Cleanup(func() {
		_ = in.Close()
		h.wait.Wait()
		if err := cmd.Wait(); err != nil {
			t.Errorf("foldgate ended: %v", err)
		}
	})
	return h
}

// rawHTTP speaks to a gateway at url.
func rawHTTP(t *testing.T, url string, era mcpclient.Era) *rawHost {
	h := &rawHost{t: t, era: era, got: make(chan string, 1000)}
	client := &http.Client{Transport: &http.Transport{}}
	h.write = func(msg string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(msg))
		if err != nil {
			t.Fatal(err)
		}
		h.headers(req.Header, msg)
		h.wait.Go(func() { h.post(client, req) })
	}
	t.Cleanup(func() { h.wait.Wait(); client.CloseIdleConnections() })
	return h
}

// headers sets the headers that the protocol demands for msg.
func (h *rawHost) headers(header http.Header, msg string) {
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json, text/event-stream")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != "" {
		header.Set("Mcp-Session-Id", h.session)
	}
	if h.era != mcpclient.Modern {
		return
	}
	var m struct {
		Method string
		Params struct{ Name, URI string }
	}
	_ = json.Unmarshal([]byte(msg), &m)
	header.Set("MCP-Protocol-Version", string(h.era))
	if m.Method != "" {
		header.Set("Mcp-Method", m.Method)
	}
	if name := m.Params.Name + m.Params.URI; name != "" {
		header.Set("Mcp-Name", name)
	}
}

func (h *rawHost) post(client *http.Client, req *http.Request) {
	res, err := client.Do(req)
	if err != nil {
		if h.t.Context().Err() == nil {
			h.t.Error(err)
		}
		return
	}
	defer res.Body.Close()
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		h.mu.Lock()
		h.session = id
		h.mu.Unlock()
	}
	if res.Header.Get("Content-Type") == "text/event-stream" {
		br := bufio.NewReaderSize(res.Body, 1<<20)
		for {
			line, err := br.ReadString('\n')
			if data, ok := strings.CutPrefix(line, "data:"); ok {
				if data = strings.TrimSpace(data); data != "" {
					h.got <- data
				}
			}
			if err != nil {
				return
			}
		}
	}
	if body, _ := io.ReadAll(res.Body); len(bytes.TrimSpace(body)) > 0 {
		h.got <- string(body)
	}
}
