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

// A file of secrets that a reload names is hidden from then on.
func TestPrivateFilesOfAReload(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			t.Parallel()
			const files = "upstreams:\n  files: {builtin: files, roots: [.]}\n"
			ctx := testContext(t)
			g := newGateway(t, files)
			for _, name := range []string{"client.pem", "shown.txt"} {
				write(t, filepath.Join(g.dir, name), "hunter2-tomato\n")
			}
			c := g.connect(ctx, "http", era)
			find := func() string { return said(t, tool(t, c, ctx, "files__grep", `{"pattern":"hunter2"}`)) }
			if found := find(); !strings.Contains(found, "client.pem") {
				t.Fatalf("before the reload: %s", found)
			}
			g.configure(files + "  api: {url: \"http://127.0.0.1:9/mcp\", auth: {issuer: \"http://127.0.0.1:9/\", client_credentials: {client_id: c, private_key_file: client.pem}}}\n")
			g.reload(reloaded)
			if found := find(); strings.Contains(found, "client.pem") || !strings.Contains(found, "shown.txt") {
				t.Errorf("after it: %s", found)
			}
			if m := tool(t, c, ctx, "files__read_file", `{"path":"client.pem"}`); !strings.Contains(string(m.Result), "foldgate's own") {
				t.Errorf("read_file: %s", m.Result)
			}
		})
	}
}
