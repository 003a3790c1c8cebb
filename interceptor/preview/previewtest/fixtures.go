// Package previewtest generates texts as tools return them: logs, API answers,
// builds, tests, tables, documents. They are made in the repository from a
// fixed seed, so every run sees the same bytes and nothing is vendored.
//
//	for _, f := range previewtest.Fixtures() { … f.Name, f.Kind, f.Text … }
package previewtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Fixture is one text, the kind it is to be taken for, and what a reader may
// want to know of it.
type Fixture struct {
	Name, Kind, Text string
	Questions        []Question
}

// Question asks for a fact. Fact is found in the text; Read are the arguments
// of the one branch_read that finds it where the preview does not show it.
type Question struct {
	Ask, Fact string
	Read      map[string]any
}

// Fixtures returns all fixtures, always the same.
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
	return Fixture{"pods.txt", "text", text, []Question{
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
