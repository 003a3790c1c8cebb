// Package spelling has the words with which agent hosts write their servers down. It is a separate
// package so that proxy/config need not import internal/hosts.
package spelling

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// BackupDir returns the directory with foldgate's backups of the files of hosts, which may hold secrets.
func BackupDir() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "foldgate", "hosts")
}

// Tables are the keys under which the hosts list their servers, by host.
var Tables = map[string]string{
	"claude-code": "mcpServers", "claude-desktop": "mcpServers", "cursor": "mcpServers", "windsurf": "mcpServers", "gemini": "mcpServers",
	"vscode": "servers", "codex": "mcp_servers", "opencode": "mcp", "zed": "context_servers", "goose": "extensions",
}

// Hosts returns the names of the hosts that list their servers under a key.
func Hosts(table string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(Tables)), func(host string) bool { return Tables[host] != table })
}

// Keys are the keys of servers in the files of the hosts, and what they mean. A key that is not
// here is reported as lost.
var Keys = map[string]string{
	"command": "command", "cmd": "command", "args": "args", "cwd": "cwd",
	"url": "url", "serverUrl": "url", "httpUrl": "url", "uri": "url",
	"env": "env", "environment": "env", "envs": "env", "headers": "headers", "http_headers": "headers",
	"includeTools": "allow", "enabled_tools": "allow", "available_tools": "allow", "excludeTools": "deny", "disabled_tools": "deny",
	"bearer_token_env_var": "variable", "env_http_headers": "variable", "env_vars": "variable", "env_keys": "keyring",
	"type": "kind", "transport": "kind", "enabled": "switch", "disabled": "switch", "timeout": "timeout",
	"name": "about", "display_name": "about", "description": "about", "bundled": "about", "source": "about",
}

// Instead says what to write in an upstream for a key of a host's server, "" if it knows nothing better.
func Instead(key string) string {
	switch means := Keys[key]; means {
	case "command":
		return "write command: [npx, -y, server]"
	case "args":
		return "put them into command: [npx, -y, server]"
	case "url", "env", "headers":
		return "write " + means
	case "allow", "deny":
		return "write tools: {" + means + ": [...]}"
	case "variable":
		return "write ${NAME} in headers or env"
	case "kind":
		return "leave it out: command or url says it"
	case "switch":
		return "comment the upstream out instead"
	case "timeout":
		return "write timeout_seconds"
	case "about":
		return "leave it out"
	}
	return ""
}
