// Package previewtest generates texts as tools return them: logs, API answers, builds, tests, tables
// and documents. They come from a fixed seed, so every run has the same bytes.
package previewtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Fixture is one text, its kind, and questions that a reader may have about it.
type Fixture struct {
	Name, Kind, Text string
	Questions        []Question
}

// Question asks for a fact. Fact is a part of the text. If the preview does not show it, one
// branch_read with the arguments Read finds it.
type Question struct {
	Ask, Fact string
	Read      map[string]any
}

// Fixtures returns all fixtures. They are the same in each call.
func Fixtures() []Fixture {
	g := &gen{rand.New(rand.NewPCG(8, 2026))}
	return []Fixture{
		g.accessLog(), g.appLog(), g.syslog(), g.sales(), g.metrics(), g.issues(), g.pulls(), g.pods(), g.events(), g.config(),
		g.gitLog(), g.gitDiff(), g.goBuild(), g.tscErrors(), g.goTest(), g.pytest(), g.apiDocs(), g.goSource(), g.pySource(), g.page(),
		g.grep(), g.prose(),
	}
}

type gen struct{ *rand.Rand }

func (g *gen) pick(from ...string) string { return from[g.IntN(len(from))] }

func q(ask, fact string, read map[string]any) Question { return Question{ask, fact, read} }

// lines joins n lines.
func lines(n int, line func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i))
		b.WriteByte('\n')
	}
	return b.String()
}

func (g *gen) sha() string { return fmt.Sprintf("%016x%016x%08x", g.Uint64(), g.Uint64(), g.Uint32()) }

var people = []string{"Ada Brandt", "Bo Lindqvist", "Chen Wei", "Dana Okafor", "Eli Sato", "Farah Haddad"}

func (g *gen) accessLog() Fixture {
	text := lines(700, func(i int) string {
		status, path := 200, g.pick("/", "/api/items", "/api/items/42", "/static/app.js", "/login", "/api/search?q=fold")
		switch {
		case i == 433:
			status, path = 503, "/api/checkout"
		case g.IntN(20) == 0:
			status = 404
		case g.IntN(60) == 0:
			status, path = 500, "/api/reports"
		}
		return fmt.Sprintf(`10.0.%d.%d - - [21/Nov/2026:%02d:%02d:%02d +0000] "GET %s HTTP/1.1" %d %d "-" "Mozilla/5.0 (X11; Linux x86_64)"`,
			g.IntN(4), g.IntN(250), 3+i/240, i/4%60, i%60, path, status, 200+g.IntN(9000))
	})
	return Fixture{"access.log", "log", text, []Question{
		q("which path answered 503?", "/api/checkout", map[string]any{"grep": `" 503 `}),
		q("is there a 500 on reports?", "GET /api/reports HTTP/1.1\" 500", map[string]any{"grep": `reports.*" 500`}),
	}}
}

func (g *gen) appLog() Fixture {
	text := lines(600, func(i int) string {
		at := fmt.Sprintf("2026-11-21T03:%02d:%02d.%03dZ", i/30%60, i*2%60, g.IntN(1000))
		switch {
		case i == 377:
			return at + " ERROR orders: payment gateway refused order ord-7731: card expired"
		case i == 500:
			return at + " FATAL store: disk /var/lib/fold is full: 0 bytes left"
		case g.IntN(25) == 0:
			return fmt.Sprintf("%s WARN  pool: connection %d slow: %dms", at, g.IntN(40), 500+g.IntN(4000))
		}
		return fmt.Sprintf("%s INFO  http: request id=%08x path=%s took=%dms", at, g.Uint32(), g.pick("/items", "/cart", "/search"), g.IntN(90))
	})
	return Fixture{"app.log", "log", text, []Question{
		q("why was the order refused?", "card expired", map[string]any{"grep": "ERROR"}),
		q("which disk is full?", "/var/lib/fold", map[string]any{"grep": "FATAL"}),
	}}
}

func (g *gen) syslog() Fixture {
	text := lines(400, func(i int) string {
		if i == 222 {
			return "Nov 21 04:22:10 web-3 kernel: Out of memory: Killed process 4411 (java) total-vm:8123456kB"
		}
		return fmt.Sprintf("Nov 21 04:%02d:%02d web-3 %s[%d]: %s", i/60%60, i%60, g.pick("sshd", "cron", "systemd"), 900+g.IntN(9000),
			g.pick("session opened for user deploy", "session closed for user deploy", "Started Daily apt activities.", "(root) CMD (run-parts /etc/cron.hourly)"))
	})
	return Fixture{"syslog", "log", text, []Question{
		q("which process was killed?", "process 4411 (java)", map[string]any{"search": "killed process memory"}),
		q("who opened sessions?", "session opened for user deploy", map[string]any{"grep": "opened"}),
	}}
}

func (g *gen) sales() Fixture {
	text := "order_id,date,region,product,quantity,unit_price,status\n" + lines(900, func(i int) string {
		price := 5 + g.IntN(400)
		if i == 640 {
			price = 98765
		}
		return fmt.Sprintf("A%05d,2026-%02d-%02d,%s,%s,%d,%d.50,%s", 10000+i, 1+i/90, 1+i%28, g.pick("north", "south", "east", "west"),
			g.pick("lamp", "desk", "chair", "shelf"), 1+g.IntN(12), price, g.pick("paid", "paid", "paid", "open", "refunded"))
	})
	return Fixture{"sales.csv", "table", text, []Question{
		q("what is the highest unit price?", "98765.5", map[string]any{"grep": "98765"}),
		q("which regions are there?", "north", map[string]any{"lines": "1-40"}),
	}}
}

func (g *gen) metrics() Fixture {
	text := "ts\thost\tcpu\tmem_mb\tdisk\n" + lines(500, func(i int) string {
		host, cpu := fmt.Sprintf("node-%d", i%7), g.IntN(80)
		if i == 313 {
			host, cpu = "node-99", 100
		}
		return fmt.Sprintf("%d\t%s\t%d\t%d\t%d", 1795000000+i*30, host, cpu, 500+g.IntN(3000), g.IntN(100))
	})
	return Fixture{"metrics.tsv", "table", text, []Question{
		q("which host reached 100 % CPU?", "node-99", map[string]any{"grep": "\t100\t"}),
		q("what columns are there?", "mem_mb", map[string]any{"lines": "1-1"}),
	}}
}

func (g *gen) issues() Fixture {
	var b strings.Builder
	b.WriteString(`{"total_count":140,"incomplete_results":false,"items":[`)
	for i := range 140 {
		if i > 0 {
			b.WriteByte(',')
		}
		title := g.pick("Crash when the list is empty", "Docs: typo in the guide", "Support for proxies", "Slow start with many tools")
		if i == 77 {
			title = "Deadlock after reconnect on Windows"
		}
		fmt.Fprintf(&b, `{"id":%d,"number":%d,"title":%q,"state":"%s","user":{"login":"user%d","id":%d,"type":"User"},"labels":[{"name":"%s","color":"d73a4a"}],"comments":%d,"created_at":"2026-10-%02dT08:00:00Z","body":%q}`,
			900000+i, 1000+i, title, g.pick("open", "closed"), i%23, 5000+i, g.pick("bug", "docs", "feature"), g.IntN(30), 1+i%28, strings.Repeat("Steps to reproduce are below. ", 3))
	}
	b.WriteString("]}")
	return Fixture{"issues.json", "JSON", b.String(), []Question{
		q("how many issues are there?", "140", map[string]any{"jq": ".total_count"}),
		q("what number has the deadlock issue?", "1077", map[string]any{"jq": `.items[]|select(.title|test("Deadlock"))|.number`}),
	}}
}

func (g *gen) pulls() Fixture {
	var b strings.Builder
	b.WriteByte('[')
	for i := range 60 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"number":%d,"title":"Change %d of the parser","draft":%v,"head":{"ref":"topic-%d","sha":"%s"},"base":{"ref":"main"},"additions":%d,"deletions":%d}`,
			400+i, i, i%9 == 0, i, g.sha(), g.IntN(900), g.IntN(300))
	}
	b.WriteByte(']')
	return Fixture{"pulls.json", "JSON", b.String(), []Question{
		q("which branch is pull 441 from?", "topic-41", map[string]any{"jq": `.[]|select(.number==441)|.head.ref`}),
		q("what is their base?", "main", map[string]any{"jq": `[.[].base.ref]|unique`}),
	}}
}

func (g *gen) pods() Fixture {
	text := "NAME                          READY   STATUS             RESTARTS   AGE\n" + lines(240, func(i int) string {
		status, restarts := "Running", g.IntN(3)
		if i == 160 {
			status, restarts = "CrashLoopBackOff", 57
		}
		return fmt.Sprintf("%-29s 1/1     %-18s %-10d %dd", fmt.Sprintf("%s-%08x-%05x", g.pick("api", "worker", "web", "cache"), g.Uint32(), g.IntN(1<<20)), status, restarts, 1+g.IntN(60))
	})
	return Fixture{"pods.txt", "table", text, []Question{
		q("which state is the failing pod in?", "CrashLoopBackOff", map[string]any{"grep": "BackOff"}),
		q("which columns are shown?", "RESTARTS", map[string]any{"lines": "1-1"}),
	}}
}

func (g *gen) events() Fixture {
	text := lines(300, func(i int) string {
		kind := g.pick("click", "view", "scroll")
		if i == 210 {
			kind = "purchase"
		}
		return fmt.Sprintf(`{"ts":%d,"type":"%s","user":{"id":%d,"plan":"%s"},"page":"/p/%d"}`, 1795000000+i, kind, g.IntN(500), g.pick("free", "pro"), g.IntN(90))
	})
	return Fixture{"events.ndjson", "NDJSON", text, []Question{
		q("when was the purchase?", "1795000210", map[string]any{"jq": `.[]|select(.type=="purchase")|.ts`}),
		q("how many events are there?", "300", map[string]any{"jq": "length"}),
	}}
}

func (g *gen) config() Fixture {
	var b strings.Builder
	b.WriteString(`{"version":3,"services":{`)
	for i := range 50 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"svc-%d":{"image":"registry/svc-%d:%d.%d","replicas":%d,"env":{"LEVEL":"%s","PORT":"%d"},"ports":[%d,%d]}`,
			i, i, 1+g.IntN(4), g.IntN(30), 1+g.IntN(5), g.pick("info", "debug"), 8000+i, 8000+i, 9000+i)
	}
	b.WriteString(`},"networks":{"default":{"driver":"overlay"}}}`)
	return Fixture{"services.json", "JSON", b.String(), []Question{
		q("which port has svc-33?", "8033", map[string]any{"jq": `.services["svc-33"].env.PORT`}),
		q("which network driver?", "overlay", map[string]any{"jq": ".networks"}),
	}}
}

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
	return Fixture{"git-log.txt", "git log", b.String(), []Question{
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
	return Fixture{"tsc.txt", "diagnostics", text, []Question{
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
	return Fixture{"go-test.txt", "test results", text, []Question{
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
	return Fixture{"pytest.txt", "test results", text, []Question{
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
