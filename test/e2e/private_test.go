//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// The built-in file server shows neither foldgate's state, nor the files of secrets that the configuration names, nor the
// backups of hosts' files.
func TestPrivateFiles(t *testing.T) {
	ctx, home := testContext(t), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "config"))
	t.Setenv("HOME", home)
	g := newGateway(t, "env_file: values.env\nlogins: {key_file: key.hex}\nupstreams:\n  files: {builtin: files, roots: [., "+home+"]}\n"+
		"  api: {url: \"${URL}\", auth: {issuer: \"http://127.0.0.1:9/\", client_credentials: {client_id: c, private_key_file: client.pem}}}\n")
	write(t, filepath.Join(g.dir, "values.env"), "URL=http://127.0.0.1:9/mcp\nPASSWORD=hunter2-tomato\n")
	for _, name := range []string{"key.hex", "client.pem", "shown.txt"} {
		write(t, filepath.Join(g.dir, name), "hunter2-tomato\n")
	}
	if err := os.Mkdir(filepath.Join(home, ".cursor"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, ".cursor", "mcp.json"), `{"mcpServers":{"x":{"command":"true","env":{"PASSWORD":"hunter2-tomato"}}}}`)
	g.output("connect", "cursor", "--yes")
	if backups, _ := filepath.Glob(filepath.Join(home, "config", "foldgate", "hosts", "*.bak")); len(backups) == 0 {
		t.Fatal("connect made no backup")
	}
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	found := said(t, tool(t, c, ctx, "files__grep", `{"pattern":"hunter2"}`))
	for _, want := range []string{"shown.txt", "mcp.json"} {
		if !strings.Contains(found, want) {
			t.Errorf("grep does not find %s: %s", want, found)
		}
	}
	for _, private := range []string{"values.env", "key.hex", "client.pem", ".bak", "state/"} {
		if strings.Contains(found, private) {
			t.Errorf("grep shows %s: %s", private, found)
		}
	}
}
