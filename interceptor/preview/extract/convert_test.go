package extract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// What a program reads of texts that are not JSON alone.
func TestWhatJQReads(t *testing.T) {
	const object = "{\n  \"a\": [1, 2],\n  \"b\": \"x\"\n}"
	skipped := func(n int) string { return fmt.Sprintf("[jq skipped what is not JSON: %d lines]", n) }
	for _, tc := range []struct{ name, text, want, note string }{
		{"JSON", object, `{"a":[1,2],"b":"x"}`, ""},
		{"lines of JSON", "{\"a\":1}\n\n{\"a\":2}\n", `[{"a":1},{"a":2}]`, ""},
		{"a warning before", "npm warn Unknown user config \"nodedir\".\n" + object, `{"a":[1,2],"b":"x"}`, "[jq skipped what is not JSON: 1 line]"},
		{"noise on both sides", "go: downloading a v1\r\n\r\n" + object + "\r\n\nexit status 1\n", `{"a":[1,2],"b":"x"}`, skipped(2)},
		{"brackets that are no JSON", "[INFO] start\n[1] 4711\n" + object + "\n[1]+ Done\n", `{"a":[1,2],"b":"x"}`, skipped(3)},
		{"noise between lines", "{\"a\":1}\nretrying...\n{\"a\":2} {\"a\":3}\n", `[{"a":1},{"a":2},{"a":3}]`, "[jq skipped what is not JSON: 1 line]"},
		{"lines of which the last is cut", "{\"a\":1}\n{\"a\":2}\n{\"a\":", `[{"a":1},{"a":2}]`, "[jq skipped what is not JSON: 1 line]"},
		{"large numbers after noise", "x\n{\"n\":12345678901234567890}", `{"n":12345678901234567890}`, "[jq skipped what is not JSON: 1 line]"},
		{"little JSON in other text", strings.Repeat("some text of a log\n", 50) + "[{\"a\":1}]\n", `[{"a":1}]`, skipped(50)},
		{"YAML", "kind: Pod\nmeta:\n  n: 1\n  f: 1.5\n  ok: true\nlist:\n- a\n- null\n", `{"kind":"Pod","list":["a",null],"meta":{"f":1.5,"n":1,"ok":true}}`, "[jq read YAML as JSON]"},
		{"documents of YAML", "---\na: 1\n---\na: 2\n---\n", `[{"a":1},{"a":2}]`, "[jq read YAML as JSON: an array of its 2 documents]"},
		{"aliases", "a: &x {b: 1}\nc: *x\nd: [*x, *x]\n", `{"a":{"b":1},"c":{"b":1},"d":[{"b":1},{"b":1}]}`, "[jq read YAML as JSON]"},
		{"keys and numbers of YAML", "1: a\ntrue: b\nn: 18446744073709551615\nm: -9223372036854775808\nt: 2026-01-01\n", `{"1":"a","m":-9223372036854775808,"n":18446744073709551615,"t":"2026-01-01","true":"b"}`, "[jq read YAML as JSON]"},
		{"XML", "\uFEFF<?xml version=\"1.0\" encoding=\"latin1\"?>\n<!DOCTYPE r>\n<r a=\"1\"><!-- no --><e>x &amp; y</e><e/><n:f b='2'>t<![CDATA[<u>]]></n:f></r>\n",
			`{"r":{"@a":"1","e":["x & y",""],"n:f":{"#text":"t<u>","@b":"2"}}}`, "[jq read XML as JSON: attributes"},
		{"XML after a warning", "warning: slow\n<r><a>1</a></r>\nexit status 1", `{"r":{"a":"1"}}`, "[jq read XML as JSON"},
		{"YAML after a warning", "Warning! It is slow\na: 1\nb:\n- 2\n", `{"a":1,"b":[2]}`, "[jq read YAML as JSON; lines around it left out: 1"},
		{"YAML between lines", "Fetching (a)\nDone [b\n---\n- a: 1\n- a: 2\n- a: 3\nexit status 1\n", `[{"a":1},{"a":2},{"a":3}]`, "[jq read YAML as JSON; lines around it left out: 3"},
		{"CSV between lines", "npm warn x\nid,name\n1,a\n2,b\n(2 rows)\n", `[{"id":"1","name":"a"},{"id":"2","name":"b"}]`, "[jq read CSV as JSON: an object a row, all values strings; lines around it left out: 2"},
		{"CSV", "id,name\n1,\"a, b\"\n2,c\n", `[{"id":"1","name":"a, b"},{"id":"2","name":"c"}]`, "[jq read CSV as JSON: an object a row"},
		{"tabs", "id\tname\n1\ta\n", `[{"id":"1","name":"a"}]`, "[jq read CSV as JSON"},
		{"values of Python", "{'a': 1, 'b': None, 'c': \"it's\", 'd': (True, b'\\xff', datetime.date(2026, 1, 2))}\n{'a': 2}\n", `[{"a":1,"b":null,"c":"it's","d":[true,"ÿ","datetime.date(2026, 1, 2)"]},{"a":2}]`, "[jq read the 2 values in the text as JSON]"},
		{"a list of Python", "[{'id': 1, 'tags': ['x', 'y',]}, {'id': 2}]", `[{"id":1,"tags":["x","y"]},{"id":2}]`, "[jq read the value in the text as JSON]"},
		{"rows of Python", "[(1, 'a', None), (2, 'b', 0.5)]", `[[1,"a",null],[2,"b",0.5]]`, "[jq read the value"},
		{"objects of Python", "User(id=1, at=datetime.datetime(2026, 1, 2), p=<P object at 0x7f>)\nUser(id=2)\n", `[{"at":"datetime.datetime(2026, 1, 2)","id":1,"p":"<P object at 0x7f>"},{"id":2}]`, "[jq read the 2 values"},
		{"values of JavaScript", "[\n  { id: 1, at: 2026-01-02T03:04:05.000Z, f: undefined },\n  { id: 0x1f, s: 'a\\'b' }\n]\n", `[{"at":"2026-01-02T03:04:05.000Z","f":null,"id":1},{"id":"0x1f","s":"a'b"}]`, "[jq read the value"},
		{"what Node does not show", "[\n  {\n    f: [Function: f], d: { e: [Object] },\n    m: Map(1) { 'k' => C { x: 1 } }\n  }\n]\n", `[{"d":{"e":"[Object]"},"f":"[Function: f]","m":{"k":{"x":1}}}]`, "[jq read the value"},
		{"a long string of pprint", "[{'a': 'some words '\n       'and \"more\"', 'b': 1}]\n", `[{"a":"some words and \"more\"","b":1}]`, "[jq read the value"},
		{"JSON with comments", "// about\n{\n  // one\n  \"a\": 1, /* two */\n  \"b\": [1, 2,],\n}\n", `{"a":1,"b":[1,2]}`, "[jq read the value"},
		{"hashes of Ruby", "{\"a\"=>1, \"b\"=>nil}\n{\"a\"=>2}\n", `[{"a":1,"b":null},{"a":2}]`, "[jq read the 2 values"},
		{"an event stream", "event: x\ndata: {\"a\":\"of several bytes\"}\n\nevent: x\ndata: {\"a\":\"of more bytes\"}\n\n", `[{"a":"of several bytes"},{"a":"of more bytes"}]`, "[jq read the 2 values"},
		{"JSON behind the time of a log", "03:04:05 api {\"msg\":\"a request\",\"n\":1}\n03:04:06 api {\"msg\":\"a request\",\"n\":2}\n", `[{"msg":"a request","n":1},{"msg":"a request","n":2}]`, "[jq read the 2 values"},
		{"JSON behind words", "Found 2: [{\"id\":1},{\"id\":2}]", `[{"id":1},{"id":2}]`, "[jq read the value"},
		{"YAML of short maps", "a: {b: 1, c: [x, y]}\nd: {b: 2, c: [x, z]}\n", `{"a":{"b":1,"c":["x","y"]},"d":{"b":2,"c":["x","z"]}}`, "[jq read YAML as JSON]"},
		{"a YAML list of maps", "- {b: 1, c: [x, y]}\n- {b: 2, c: [x, z]}\n", `[{"b":1,"c":["x","y"]},{"b":2,"c":["x","z"]}]`, "[jq read YAML as JSON]"},
		{"CSV without names", "1,2\n3,4\n", `[["1","2"],["3","4"]]`, "[jq read CSV as JSON: an array a row"},
		{"CSV with a name twice", "a,a\n3,4\n", `[["a","a"],["3","4"]]`, "[jq read CSV as JSON: an array a row"},
	} {
		input, note, err := readInput(tc.text, MaxConvert)
		got, _ := runJQ(".", input)
		if got != tc.want || err != nil || !strings.HasPrefix(note, tc.note) || tc.note == "" && note != "" {
			t.Errorf("%s: %s, %q, %v; want %s, %q", tc.name, got, note, err, tc.want, tc.note)
		}
	}
	programs := NewPrograms(1)
	if got, err := programs.JQ(t.Context(), "me", "npm warn x\n"+object, ".a[]"); got != "[jq skipped what is not JSON: 1 line]\n1\n2" || err != nil {
		t.Errorf("JQ = %q, %v", got, err)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"prose":                                {"some words\nin two lines", "nor is it YAML, XML or CSV"},
		"a date":                               {"2026-11-23", "not JSON"},
		"digits":                               {"0644", "not JSON"},
		"rows that are longer than the header": {"host,state\nweb1,up,x\nweb2,down,y\nweb3,up,z\n", "nor is it"},
		"a faulty row":                         {"id,note\n1,a\n2,b\n3,c, d\n4,e\n", "nor is it"},
		"a key with a blank":                   {"Full Name: Ann\nid: 3\nb: 2\nc: 1\nexit status 1\n", ""},
		"JSON that is cut":                     {"npm warn x\n" + object[:20], "begins in line 2 is cut off"},
		"HTML":                                 {"<html><p>one<p>two</html>", "nor is it"},
		"an open element":                      {"<a><b></b>", "nor is it"},
		"an entity":                            {"<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>", "nor is it"},
		"too much":                             {strings.Repeat("a: b\n", MaxConvert/5+1), "too many to convert"},
	} {
		if got, err := programs.JQ(t.Context(), "me", tc.text, "."); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %.100q, %v; want %q", name, got, err, tc.want)
		} else if tc.want != "" && (strings.Count(err.Error(), "jq") > 1 || !strings.Contains(err.Error(), "use grep, search or lines")) {
			t.Errorf("%s: %v; want what to use", name, err)
		}
	}
}

// Texts that grow when they are converted, or nest deeply, take neither the time of others nor the
// memory of the gateway.
func TestConversionIsBounded(t *testing.T) {
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 30 {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	programs := NewPrograms(1)
	for name, text := range map[string]string{
		"a billion laughs": laughs,
		"merged laughs":    strings.ReplaceAll(laughs, "[x,x,x,x,x,x,x,x,x,x]", "{k: v}"),
		"deep YAML":        strings.Repeat("[", 50_000),
		"deep XML":         strings.Repeat("<a>", MaxConvert/7) + strings.Repeat("</a>", MaxConvert/7),
		"lines that open":  strings.Repeat("[\n", MaxJQInput/2-2),
		"open maps":        strings.Repeat("{'a':\n", MaxConvert/6),
		"a large YAML":     strings.Repeat("- {a: b, c: [1, 2]}\n", MaxConvert/20),
		"a large text":     strings.Repeat("some words of a long text\n", MaxConvert/27),
	} {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		got, err := programs.JQ(ctx, "me", text, "length")
		cancel()
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %.100q, %v; want it refused", name, got, err)
		}
		t.Logf("%s: %d bytes, %.100q, %v after %v", name, len(text), got, err, time.Since(start).Round(time.Millisecond))
	}
}

// A table with very many columns is converted in the time of one with as many rows.
func TestWideCSV(t *testing.T) {
	var header strings.Builder
	const columns = 100_000
	for i := range columns {
		fmt.Fprintf(&header, "c%06d,", i)
	}
	began := time.Now()
	rows, _, err := fromCSV(header.String() + "x\n" + strings.Repeat("1,", columns) + "1\n")
	if took := time.Since(began); err != nil || took > 5*time.Second {
		t.Errorf("took %s, %v", took, err)
	}
	if row, _ := rows.([]any)[0].(map[string]any); len(row) != columns+1 {
		t.Errorf("a row has %d columns", len(row))
	}
}

// FuzzReadInput: whatever a text is, its conversion ends, and JSON around noise is what it is alone.
func FuzzReadInput(f *testing.F) {
	for _, text := range []string{
		"", "\v", "{}", "npm warn x\n{\"a\":1}\nend", "a: &x [1]\nb: *x", "<a b='c'>d<e/></a>", "a,b\n1,2", "[\n[\n", "- - - a", "? {a: b}\n: c", "<<: {a: 1}", "\uFEFF<a/>", "%YAML 1.2\n---\n!!set {a}", "a\t\"b\n\"\t\"",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 10_000 { // the process that runs programs has limits, this one has not
			return
		}
		input, note, err := readInput(text, MaxConvert)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("readInput(%q): %v", text, err)
			}
			return
		}
		if _, err := runJQ(".", input); err != nil {
			t.Errorf("of %q jq can't read %#v: %v", text, input, err)
		}
		if note == "" && strings.HasPrefix(strings.TrimSpace(text), "{") && json.Valid([]byte(text)) && len(text) > 100 {
			want, _ := runJQ(".", input)
			input, note, err := readInput("npm warn: x\n"+text+"\nexit status 1", MaxConvert)
			if got, _ := runJQ(".", input); got != want || err != nil || !strings.Contains(note, "2 lines") {
				t.Errorf("between noise %q is %q, %q, %v; want %q", text, got, note, err, want)
			}
		}
	})
}

// FuzzEmbeds: the values of any text are JSON, in order, each from within a line to the end of one, and most of the text.
func FuzzEmbeds(f *testing.F) {
	for _, text := range []string{
		"a {'b': 1, \"c\": [None, (1, 2)]}", "[{a: 'x', b: f(1, '2'), c: <d e>},\n{a => nil}]", "U(a=1, b=U(c=[]))", "// x\n{\"a\": 1, /* y */ 'b': u'\\u00e4\\'',}\n", "data: {\"a\": 1}\n\ndata: {}\n", "{a:{b:{c:[[[1", "- {a: 1}\nb: {c: 2}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		end, size := 0, 0
		for _, v := range Embeds(text) {
			if v.Line < end || v.From < v.Line || v.To <= v.From || v.To > len(text) || strings.Contains(text[v.Line:v.From], "\n") ||
				v.Line > 0 && text[v.Line-1] != '\n' || strings.TrimSpace(text[v.To:lineEnd(text, v.To)]) != "" {
				t.Fatalf("of %q the value is %q from %d", text, text[v.From:v.To], v.From)
			}
			if _, err := decode(string(v.JSON)); err != nil || !json.Valid(v.JSON) {
				t.Errorf("of %q the value is %q: %v", text, v.JSON, err)
			}
			end, size = v.To, size+v.To-v.From
		}
		if size > 0 && size*2 <= len(strings.TrimSpace(text)) {
			t.Errorf("of %q the values are %d bytes", text, size)
		}
	})
}

// Results that would be converted, but for the limit of their batch, are named; other texts and JSON are not.
func TestResultsOverTheLimitAreNamed(t *testing.T) {
	csv := "id,name,state\n" + strings.Repeat("7,a name,open\n", 50_000) // 700 KB
	for name, k := range map[string]struct {
		results []string
		over    int
	}{
		"CSV":      {[]string{csv, csv, csv}, 2},
		"YAML":     {[]string{csv, strings.Repeat("- id: 7\n  name: a name\n", 40_000)}, 1},
		"XML":      {[]string{csv, "<rows>" + strings.Repeat("<row id=\"7\"/>\n", 60_000) + "</rows>"}, 1},
		"ragged":   {[]string{"id,name,state\n" + strings.Repeat("7,a name,open\n", 45_000) + "7,8,9,10\n"}, 0}, // tried, and not over the limit
		"below it": {[]string{csv, "id,name,state\n1,b,open\n2,c,open\n"}, 0},
		"text":     {[]string{csv, strings.Repeat("It is a line of words, and no more.\nSo is this (not that) one.\n", 20_000)}, 0},
		"JSON":     {[]string{csv, `{"a": "` + strings.Repeat("x", 1<<20) + `"}`}, 0},
	} {
		var items []any
		for _, r := range k.results {
			items = append(items, map[string]any{"result": r})
		}
		note, want := readResults(items), fmt.Sprintf("[jq left %d of %d results as text: it converts 1024 KiB of YAML, XML and CSV of a batch; make smaller batches, or use grep]", k.over, len(items))
		if strings.Contains(note, want) != (k.over > 0) || strings.Contains(note, "[jq left") != (k.over > 0) {
			t.Errorf("%s: note = %q, want %d results over the limit", name, note, k.over)
		}
	}
}
