package previewtest

import (
	"fmt"
	"strings"
)

func (g *gen) gitLog() Fixture {
	var b strings.Builder
	for i := range 120 {
		subject := g.pick("parser: read numbers exactly", "docs: say what a budget is", "cmd: exit 2 on usage errors", "store: write in order")
		if i == 64 {
			subject = "revert: drop the second cache"
		}
		fmt.Fprintf(&b, "commit %s\nAuthor: %s <dev%d@example.org>\nDate:   Fri Nov %d 1%d:00:00 2026 +0000\n\n    %s\n\n    Explains why in a sentence or two, wrapped\n    at seventy columns.\n\n",
			g.sha(), people[i%len(people)], i%6, 1+i%28, i%10, subject)
	}
	return Fixture{"git-log.txt", "source", b.String(), []Question{
		q("was something reverted?", "revert: drop the second cache", map[string]any{"grep": "revert"}),
		q("who wrote the last commit?", "Ada Brandt", map[string]any{"lines": "1-5"}),
	}}
}

func (g *gen) gitDiff() Fixture {
	var b strings.Builder
	for i := range 14 {
		name := fmt.Sprintf("internal/part%d/file%d.go", i%5, i)
		fmt.Fprintf(&b, "diff --git a/%s b/%s\nindex %.7s..%.7s 100644\n--- a/%s\n+++ b/%s\n", name, name, g.sha(), g.sha(), name, name)
		for h := range 4 {
			fmt.Fprintf(&b, "@@ -%d,7 +%d,9 @@ func part%d() {\n", 10+h*40, 10+h*40, h)
			for l := range 8 {
				fmt.Fprintf(&b, "%s\tx%d := compute(%d, %q)\n", []string{" ", "-", "+"}[l%3], l, g.IntN(99), g.pick("a", "b"))
			}
		}
	}
	return Fixture{"change.diff", "diff", b.String(), []Question{
		q("how many files changed?", "14", map[string]any{"grep": "^diff"}),
		q("is file9.go changed?", "internal/part4/file9.go", map[string]any{"grep": "file9"}),
	}}
}

func (g *gen) goBuild() Fixture {
	text := lines(260, func(i int) string {
		switch {
		case i == 201:
			return "internal/core/engine.go:88:14: undefined: NewLedger"
		case i == 202:
			return "internal/core/engine.go:93:2: missing return"
		case i > 255:
			return "make: *** [Makefile:12: build] Error 1"
		}
		return fmt.Sprintf("compiled github.com/example/app/internal/pkg%d/%s in %dms", i, g.pick("api", "db", "ui"), g.IntN(900))
	})
	return Fixture{"build.txt", "log", text, []Question{
		q("what is undefined?", "undefined: NewLedger", map[string]any{"grep": "undefined"}),
		q("which target failed?", "Makefile:12: build", map[string]any{"grep": `\*\*\*`}),
	}}
}

func (g *gen) tscErrors() Fixture {
	text := lines(130, func(i int) string {
		code, msg := "TS2345", "Argument of type 'string' is not assignable to parameter of type 'number'."
		if i == 99 {
			code, msg = "TS2307", "Cannot find module './legacy/shim' or its corresponding type declarations."
		}
		return fmt.Sprintf("src/%s/file%d.ts(%d,%d): error %s: %s", g.pick("api", "ui", "lib"), i%40, 1+g.IntN(300), 1+g.IntN(80), code, msg)
	})
	return Fixture{"tsc.txt", "log", text, []Question{
		q("which module is missing?", "./legacy/shim", map[string]any{"grep": "TS2307"}),
		q("what is the usual error?", "TS2345", map[string]any{"lines": "1-3"}),
	}}
}

func (g *gen) goTest() Fixture {
	text := lines(420, func(i int) string {
		switch {
		case i == 300:
			return "--- FAIL: TestLedgerRefund (0.02s)"
		case i == 301:
			return "    ledger_test.go:77: Refund(5) = 9, want 10"
		case i == 418:
			return "FAIL\tgithub.com/example/app/budget\t1.221s"
		case i == 419:
			return "FAIL"
		case i%2 == 0:
			return fmt.Sprintf("=== RUN   TestCase%d", i/2)
		}
		return fmt.Sprintf("--- PASS: TestCase%d (0.0%ds)", i/2, g.IntN(9))
	})
	return Fixture{"go-test.txt", "log", text, []Question{
		q("which test failed?", "TestLedgerRefund", map[string]any{"grep": "--- FAIL"}),
		q("what did it want?", "want 10", map[string]any{"lines": "298-304"}),
	}}
}

func (g *gen) pytest() Fixture {
	text := "============================= test session starts ==============================\nplatform linux -- Python 3.13.0, pytest-9.0.0\n" + lines(180, func(i int) string {
		if i == 120 {
			return "tests/test_orders.py::test_total FAILED                                  [ 66%]"
		}
		return fmt.Sprintf("tests/test_%s.py::test_case_%d PASSED                                   [%3d%%]", g.pick("api", "db", "ui"), i, i*100/180)
	}) + "E       AssertionError: assert Decimal('10.10') == Decimal('10.01')\ntests/test_orders.py:42: AssertionError\n=================== 1 failed, 179 passed in 12.31s ===================\n"
	return Fixture{"pytest.txt", "log", text, []Question{
		q("how many failed?", "1 failed, 179 passed", map[string]any{"grep": "passed in"}),
		q("what was compared?", "Decimal('10.10')", map[string]any{"grep": "AssertionError: "}),
	}}
}

func (g *gen) apiDocs() Fixture {
	var b strings.Builder
	b.WriteString("# Widget API\n\nThe API of the widget service, version 4.\n\n")
	for i := range 24 {
		fmt.Fprintf(&b, "## %s widgets, part %d\n\n%s\n\n### Parameters\n\n- `id`: the widget\n- `limit`: at most %d\n\n```js\nconst w = await client.widgets.%s({ id: %d })\n# not a heading\n```\n\n",
			g.pick("List", "Create", "Rename", "Archive"), i, strings.Repeat("Returns the widgets that the caller may see, in order of creation. ", 3), 10+i, g.pick("list", "create"), i)
		if i == 17 {
			b.WriteString("The request limit is 250 a minute for each key; over it the answer is 429.\n\n")
		}
	}
	return Fixture{"docs.md", "Markdown", b.String(), []Question{
		q("what is the request limit?", "250 a minute", map[string]any{"search": "request limit 429"}),
		q("what is it about?", "Widget API", map[string]any{"lines": "1-3"}),
	}}
}

func (g *gen) goSource() Fixture {
	var b strings.Builder
	b.WriteString("// Package parts keeps parts.\npackage parts\n\nimport (\n\t\"fmt\"\n\t\"sync\"\n)\n\ntype Store struct {\n\tmu sync.Mutex\n\tall map[string]int\n}\n\n")
	for i := range 45 {
		fmt.Fprintf(&b, "// Part%d returns part %d.\nfunc (s *Store) Part%d(name string) (int, error) {\n\ts.mu.Lock()\n\tdefer s.mu.Unlock()\n\tif v, ok := s.all[name]; ok {\n\t\treturn v + %d, nil\n\t}\n\treturn 0, fmt.Errorf(\"no part %%q\", name)\n}\n\n", i, i, i, g.IntN(1000))
	}
	b.WriteString("func newStore() *Store { return &Store{all: map[string]int{}} }\n")
	return Fixture{"store.go", "source", b.String(), []Question{
		q("which type is there?", "type Store struct", map[string]any{"grep": "^type"}),
		q("how is one made?", "func newStore() *Store", map[string]any{"grep": "newStore"}),
	}}
}

func (g *gen) pySource() Fixture {
	var b strings.Builder
	b.WriteString("import asyncio\nimport json\n\nMAX_RETRIES = 7\n\n")
	for i := range 20 {
		fmt.Fprintf(&b, "class Worker%d:\n    \"\"\"Runs job %d.\"\"\"\n\n    def __init__(self, queue):\n        self.queue = queue\n\n    async def run(self):\n        for attempt in range(MAX_RETRIES):\n            job = await self.queue.get()\n            if job is None:\n                return\n            await self.handle(job, %d)\n\n", i, i, g.IntN(99))
	}
	return Fixture{"worker.py", "source", b.String(), []Question{
		q("how many retries?", "MAX_RETRIES = 7", map[string]any{"grep": "MAX_RETRIES ="}),
		q("what is the last class?", "class Worker19", map[string]any{"grep": "^class"}),
	}}
}

func (g *gen) page() Fixture {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html><html><head><title>Release notes</title><style>.a{color:red}</style><script>var x = '<p>no</p>';</script></head><body><nav><ul>")
	for i := range 30 {
		fmt.Fprintf(&b, `<li class="nav-item"><a href="/notes/%d" data-id="%x">Version 4.%d</a></li>`, i, g.Uint64(), i)
	}
	b.WriteString("</ul></nav><main>")
	for i := range 30 {
		fmt.Fprintf(&b, `<section id="v%d" class="release wide"><h2>Version 4.%d</h2><p>Released in week %d. %s</p></section>`, i, i, 1+i, strings.Repeat("Fixes and small changes. ", 4))
	}
	b.WriteString("<p>Support for version 3 ended on 2026-06-30.</p></main></body></html>")
	return Fixture{"notes.html", "HTML", b.String(), []Question{
		q("when did support for version 3 end?", "2026-06-30", map[string]any{"grep": "Support for version 3"}),
		q("what is the title?", "Release notes", map[string]any{"search": "release notes title"}),
	}}
}

func (g *gen) grep() Fixture {
	text := lines(220, func(i int) string {
		file := fmt.Sprintf("src/%s/mod%d.rs", g.pick("net", "core"), i/18)
		if i == 150 {
			return "build/legacy.rs:12:// TODO remove before 5.0"
		}
		return fmt.Sprintf("%s:%d:    let value = table.lookup(%d)?; // TODO", file, 1+i*3, g.IntN(999))
	})
	return Fixture{"grep.txt", "matches", text, []Question{
		q("what must go before 5.0?", "build/legacy.rs:12", map[string]any{"grep": "before 5"}),
		q("is mod3 in it?", "mod3.rs", map[string]any{"grep": "mod3"}),
	}}
}

func (g *gen) prose() Fixture {
	text := lines(160, func(i int) string {
		if i == 91 {
			return "The meeting moved to Thursday the 26th at ten, in the small room on the second floor."
		}
		return strings.Join([]string{"In the", g.pick("first", "second", "last"), "part we look at", g.pick("storage", "planning", "travel"), "and what it", g.pick("costs", "needs", "gives"), "over a year."}, " ")
	})
	return Fixture{"prose.txt", "text", text, []Question{
		q("when is the meeting?", "Thursday the 26th", map[string]any{"search": "meeting moved"}),
		q("where is it?", "small room on the second floor", map[string]any{"search": "meeting room floor"}),
	}}
}
