package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

// The commands show an operator what a principal sees, and which decisions are not as expected.
func TestPolicyCommands(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "foldgate.yaml")
	add := func(name, text string) string {
		path := filepath.Join(dir, name)
		write(t, path, text)
		return path
	}
	add("foldgate.yaml", `principals:
  alice: {token: 0123456789abcdef, team: data, roles: [analyst]}
  bob: {token: fedcba9876543210}
upstreams: {files: {builtin: files, roots: [.]}}
policy:
  default: deny
  rules:
    - {name: readers, allow: ["files__read_file", "files__reed*"]}
    - {name: notes, who: {team: data, role: analyst}, allow: ["files__search_files"], when: 'server == "files" && args.pattern == "notes"'}
`)
	out := succeeds(t, file, "check", "--as", "alice")
	says(t, out, `2 tools, 0 prompts`, `files__search_files .*\(rule notes\)`, `files__read_file .*\(rule readers\)`, `policy\.rules\[0\]\.allow: "files__reed\*" fits no tool`)
	if out := succeeds(t, file, "check", "--as", "bob"); strings.Contains(out, "search_files") || !strings.Contains(out, "read_file") {
		t.Errorf("bob sees\n%s", out)
	}
	if _, errOut, code := runs(t, "check", "--as", "carol", "--config", file); code != exitUsage || !strings.Contains(errOut, "there are alice, bob") {
		t.Errorf("code %d, %s", code, errOut)
	}
	issued := add("issued.yaml", `public_url: http://127.0.0.1:1
auth: {issuers: {corp: {url: "http://127.0.0.1:1"}}}
upstreams: {files: {builtin: files, roots: [.]}}
policy:
  default: deny
  rules:
    - {name: readers, allow: ["files__read_file"]}
    - {name: db, who: {scope: "db:read"}, allow: ["files__search_files"]}
    - {name: team, who: {team: data, role: analyst}, allow: ["files__grep"]}
`)
	out = succeeds(t, issued, "check", "--as", "corp:ann")
	says(t, out, ` 1 tool, `, `^note: what the token of corp:ann says decides whether these rules apply: team, db; give it with --team, --roles, --scopes$`)
	out = succeeds(t, issued, "check", "--as", "corp:ann", "--scopes", "db:read,x", "--team", "data", "--roles", "analyst")
	says(t, out, `files__search_files .*\(rule db\)`, `files__grep .*\(rule team\)`)
	if strings.Contains(out, "note:") {
		t.Errorf("a note, though all is given:\n%s", out)
	}
	good := add("good.yaml", `
- {principal: alice, tool: files__search_files, args: {pattern: notes}, expect: allow, rule: notes}
- {principal: alice, team: web, tool: files__search_files, args: {pattern: notes}, expect: deny, rule: default}
- {team: data, roles: [analyst], tool: files__search_files, args: {}, expect: deny, rule: notes}
- {principal: bob, prompt: files__x, expect: deny}
- {resource: "file:///x", expect: deny}
- {principal: bob, tool: branch_create, expect: allow, rule: default}
- {principal: bob, prompt: files__branch_create, expect: deny}
`)
	says(t, succeeds(t, file, "policy", "test", good), "^7 decisions as expected$")
	long := "files__export_all_customer_records_of_the_region_and_then_delete_everything_now"
	add("long.yaml", "upstreams: {files: {builtin: files, roots: [.]}}\nprincipals: {bob: {token: fedcba9876543210}}\n"+`policy:
  default: deny
  rules: [{name: all, allow: ["files__export*"]}, {name: no-delete, deny: ["*_delete_everything_now"]}, {name: ends, allow: ["files__i*_everything_now"]}]
`)
	says(t, succeeds(t, filepath.Join(dir, "long.yaml"), "policy", "test", add("longtest.yaml", `
- {principal: bob, tool: `+long+`, expect: deny, rule: no-delete}
- {principal: bob, tool: `+strings.Replace(long, "export", "import", 1)+`, expect: deny}
- {principal: bob, prompt: `+long+`, expect: deny}
`)), "^3 decisions as expected$")
	short := add("short.yaml", "- {principal: bob, tool: "+config.ShortName(long)+", expect: deny}")
	if _, errOut, code := runs(t, "policy", "test", short, "--config", filepath.Join(dir, "long.yaml")); code == 0 || !strings.Contains(errOut, "is a shortened name: write the whole one") {
		t.Errorf("code %d, %s", code, errOut)
	}
	search := add("search.yaml", "tools: {mode: search}\nprincipals: {bob: {token: fedcba9876543210}}\nupstreams: {files: {builtin: files, roots: [.]}}\npolicy: {default: deny, rules: [{name: none, deny: [x]}]}\n")
	found := add("found.yaml", "- {principal: bob, tool: find_tools, expect: allow}\n- {principal: bob, tool: call_tool, expect: allow}\n")
	says(t, succeeds(t, search, "policy", "test", found), "^2 decisions as expected$")
	if _, _, code := runs(t, "policy", "test", found, "--config", filepath.Join(dir, "long.yaml")); code != exitFailed {
		t.Errorf("without search, find_tools is allowed: code %d", code)
	}
	bad := add("bad.yaml", `
- {principal: alice, tool: files__read_file, expect: deny}
- {principal: bob, tool: files__search_files, expect: deny, rule: notes}
- {principal: bob, tool: files__read_file, expect: allow}
`)
	out, errOut, code := runs(t, "policy", "test", bad, "--config", file)
	says(t, out, `^1: alice files__read_file: want deny, got allow by readers$`, `^2: bob files__search_files: want deny by notes, got deny by default$`)
	if code != exitFailed || !strings.Contains(errOut, "2 of 3 decisions") || strings.Contains(out, "3:") {
		t.Errorf("code %d, %s%s", code, errOut, out)
	}
	for text, want := range map[string]string{
		"- {tool: x, expct: deny}": "bad.yaml: line 1: [0].expct: there is no such key; did you mean expect? Otherwise use one of principal, team, ", "- {tool: x, prompt: y, expect: deny}": "exactly one of tool", "- {tool: x, expect: no}": "is not one of allow, deny",
		"- {tool: x, expect: deny, principal: zed}": `line 1: [0].principal: there is no principal "zed"; there are alice, bob`,
		"- {tool: fiels__read_file, expect: deny}":  `no server has "fiels__read_file": hosts see names such as files__*`, "- {prompt: x, expect: deny}": `no server has "x"`,
		"- {resource: 'file:///x', server: nope, expect: deny}": `there is no upstream "nope"; there are files`, "- {tool: files__x, server: nope, expect: deny}": `there is no upstream "nope"`,
		"- {tool: fiels__x, server: files, expect: deny}": `no server has "fiels__x"`,
		"tool: x": "bad.yaml: line 1: must be a list", "- {tool: x, expect: deny}\n-\ttool: x": "line 2: syntax: has a tab", "- {tool: files__grep, expect: deny}\n- {tool: files__grep, args: {q: '${NOT_SET} $$'}, expect: no}": "line 2: [1].expect: ", "": "has no tests", "[]": "has no tests",
	} {
		add("bad.yaml", text+"\n")
		if _, errOut, code := runs(t, "policy", "test", bad, "--config", file); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %s", text, code, errOut)
		}
	}
}
