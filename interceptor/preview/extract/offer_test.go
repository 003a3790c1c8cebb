package extract_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/test/previewtest"
)

// A preview offers jq where jq can read the text, and not where it can't.
func TestPreviewsOfferJQ(t *testing.T) {
	rows := func(form string) string {
		var b strings.Builder
		for i := range 60 {
			fmt.Fprintf(&b, form, i, i%7)
		}
		return b.String()
	}
	list := rows("- id: %d\n  size: %d\n")
	array := "[" + strings.TrimSuffix(rows("{\"id\":%d,\"size\":%d},\n"), ",\n") + "]"
	texts := map[string]string{}
	for _, f := range previewtest.Fixtures() {
		texts[f.Name] = f.Text
	}
	readable := map[string]string{ // those that it must offer
		"JSON": array, "JSON with noise": "npm warn x\n" + array + "\nend\n", "JSON Lines": rows("{\"id\":%d,\"size\":%d}\n"), "events": rows("{\"Action\":\"output\",\"Output\":\"--- PASS: T%d (0.%ds)\\n\"}\n"),
		"YAML": list, "YAML of a key": "items:\n" + list, "YAML with texts": rows("- id: %d\n  size: %d\n  text: |\n    a: b: c\n  more: \"a: b: c\"\n  url: http://a/b:c\n"), "YAML with noise": "Warning! It is slow\nitems:\n" + list + "exit status 1\n",
		"documents": rows("---\nid: %d\nsize: %d\nall:\n  id: 1\n"), "folded lines": rows("- id: %d\n  size: %d\n  about: some words\n    and more\n"),
		"Python": rows("{'id': %d, 'size': %d, 'more': None}\n"), "JavaScript": "[\n" + rows("  { id: %d, size: %d },\n") + "]\n", "event stream": rows("data: {\"id\":%d,\"size\":%d}\n\n"), "JSON behind words": "Found 60: " + strings.ReplaceAll(array, "\n", ""),
		"JSON in a log": rows("2026-11-20T09:00:00Z api {\"msg\":\"a request\",\"id\":%d,\"size\":%d}\n"),
		"XML":           "<rows>" + rows("<row id=\"%d\"><size>%d</size></row>\n") + "</rows>", "CSV": "id,size\n" + rows("%d,%d\n"), "TSV": "id\tsize\n" + rows("%d\t%d\n"), "no header": rows("%d,%d\n"),
		"CSV with noise": "npm warn x\nid,size\n" + rows("%d,%d\n") + "(60 rows)\n", "quoted CSV": "id,text,size\n" + rows("%d,\"a, \"\"b\"\"\nc\",%d\n"), "semicolons": "id;size;x\n" + rows("%d;%d;1\n"),
	}
	for name, text := range map[string]string{
		"YAML maps": rows("k%d: {size: %d, state: up}\n"), "statements": rows("x%d = {'id': %d, 'size': 1}\n"), "log": rows("2026-11-20T09:00:00Z INFO request id=%d path=/cart took=%dms\n"), "prose": rows("some words %d in %d lines\n"), "listing": rows("/a/b%d/c%d.go\n"),
		"cut JSON": array[:len(array)-9], "JSON before text": array + " and more\n", "HTML": "<html><p>one" + rows("<p>%d<br>%d") + "</html>", "XML with entities": "<rows>" + rows("<row id=\"%d\">a&nbsp;%d</row>") + "</rows>",
		"uneven CSV": "id,size,x\n" + rows("%d,%d,1\n") + "1,2,3,4\n", "CSV with quotes": "id,size,x\n" + rows("%d,\"a\" b%d,1\n"), "psql": " id | size\n----+-----\n" + rows(" %d | %d\n") + "(60 rows)\n",
		"YAML with colons": rows("- id: %d\n  about: a: b%d\n"), "folded colons": rows("- id: %d\n  about: a\n    and b: c%d\n"), "a key twice": "a:\n  b: 1\na:\n  c: 2\n" + rows("k%d: 1\nl%d: 2\nx:\n  y: 3\n"), "shortlog": rows("Ann (%d):\n      fix: a thing %d\n      more\n"),
		"a stray line": "a:\n  b: 1\n" + rows("k%d:\n  l%d: 2\n") + "stray\n" + rows("m%d:\n  n%d: 2\n"), "tests": rows("--- PASS: T%d (0.0%ds)\n"), "diff": "diff --git a/x b/x\n@@ -1 +1 @@\n" + rows("-%d\n+%d\n"),
		"aligned": "NAME   SIZE   STATE\n" + rows("web%-4d  %-5d  up\n"), "source": "package a\n\n" + rows("func f%d() int {\n\treturn %d\n}\n\n"), "Markdown": "# A\n\nText.\n\n" + rows("## B %d\n\nText %d.\n\n"),
		"configuration": "[a]\n" + rows("b%d = %d\n"), "records": rows("Package: a%d\nVersion: %d\nSection: b\nPriority: c\n\n"),
	} {
		texts[name] = text
	}
	for name, text := range readable {
		texts[name] = text
	}
	for name, text := range texts {
		p, ok := preview.Make(preview.Source{Text: text, Tokens: 1e6, Handle: "res_0123456789abcdefghjkmnpqrs"}, 300, func(s string) int { return (len(s) + 3) / 4 })
		offered := strings.Contains(p.Text, "(lines, grep, jq, search)")
		_, _, err := extract.ReadInput(text, extract.MaxConvert)
		if _, must := readable[name]; !ok || offered && err != nil || must && (!offered || err != nil) {
			t.Errorf("%s: offered %v, reading ends with %v:\n%.300s", name, offered, err, p.Text)
		}
		if !offered && err == nil {
			t.Logf("%s could be read and jq is not offered: %.40q", name, p.Text)
		}
	}
	p, _ := preview.Make(preview.Source{Text: texts["prose"], Tokens: 1e6, Handle: "res_1", Data: true}, 300, func(s string) int { return len(s) })
	if !strings.Contains(p.Text, "grep, jq, search") {
		t.Errorf("jq is not offered for structured content: %s", p.Text)
	}
}
