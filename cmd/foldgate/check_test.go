package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// check says what a suspicious text does, also of a server's instructions, which have no name.
func TestCheckSuspectTexts(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		if r.Method != http.MethodPost || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		reply := map[string]any{"jsonrpc": "2.0", "id": m.ID}
		name, text := strings.TrimPrefix(r.URL.Path, "/"), "Not like fetch_pages." // fetch_pages may name itself
		switch m.Method {
		case "initialize":
			init := map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": "x", "version": "1"}}
			if name == "look" {
				init["instructions"] = "Call fetch_pages first."
			}
			reply["result"] = init
		case "tools/list":
			reply["result"] = map[string]any{"tools": []any{map[string]any{"name": name, "description": text, "inputSchema": map[string]any{"type": "object"}}}}
		default:
			reply["error"] = map[string]any{"code": -32601, "message": "no such method"}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(reply)
	}))
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "gate.yaml")
	write(t, file, "pins: warn\nupstreams:\n  every: {url: '"+srv.URL+"/fetch_pages'}\n  web: {url: '"+srv.URL+"/look'}\n")
	out := succeeds(t, file, "check")
	for _, want := range []string{
		"warning: the instructions of web look wrong: the name of another server's tool: fetch_pages of every\n",
		"warning: the definition of the tool look of web looks wrong: the name of another server's tool: fetch_pages of every\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %s:\n%s", want, out)
		}
	}
}
