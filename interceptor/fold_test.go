package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/test/previewtest"
)

// foldBench is a chain of Meter and Fold over a tool that answers as told.
type foldBench struct {
	t      *testing.T
	m      *folding.Manager
	store  *results.Store
	gauge  TokenMeter
	policy FoldPolicy
}

var me = folding.Caller{Principal: "ada", Session: "s1"}

func newFoldBench(t *testing.T) *foldBench {
	t.Helper()
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	cfg := folding.DefaultConfig()
	cfg.MaxBranchesPerMinute = 1000
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := folding.Open(t.Context(), cfg, folding.Options{Repository: repo, Count: counter.Count, Scrub: func(_ context.Context, s string) (string, error) { return s, nil }})
	if err != nil {
		t.Fatal(err)
	}
	store, err := results.Open(filepath.Join(t.TempDir(), "results.db"), results.Config{Quota: 8 << 20, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()); _ = store.Close() })
	return &foldBench{t, m, store, TokenMeter{counter, 1600}, FoldPolicy{
		MainThreshold: 8000, BranchFraction: 0.125, PreviewTokens: 400, Rule: foldRule(FoldRule{}),
	}}
}

func noLimits() *Limits { return nil }

// branch opens a branch with a budget.
func (f *foldBench) branch(tokens int) *folding.Branch {
	f.t.Helper()
	b, err := f.m.Create(f.t.Context(), me, folding.CreateRequest{Description: "d", Budget: tokens})
	if err != nil {
		f.t.Fatal(err)
	}
	return &b
}

// call runs a tool that answers body, in b or in main.
func (f *foldBench) call(b *folding.Branch, body string) (*Call, *Result, error) {
	return f.run(b, Result{Body: json.RawMessage(body)})
}

// run is call for any answer.
func (f *foldBench) run(b *folding.Branch, answer Result) (*Call, *Result, error) {
	c := &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: Target{Server: "db", Method: "tools/call", Name: "query", Metered: true}, Attribution: Attribution{Branch: b}}
	h := wrap(func(context.Context, *Call) (*Result, error) { return &answer, nil },
		Meter(f.m, noLimits, f.gauge), Fold(f.store, f.gauge, func() *FoldPolicy { return &f.policy }, testBoundary(f.t), slog.New(slog.DiscardHandler)))
	res, err := h(f.t.Context(), c)
	return c, res, err
}

// wrap returns h inside layers, the first one outermost.
func wrap(h Handler, layers ...Layer) Handler {
	for _, layer := range slices.Backward(layers) {
		h = layer(h)
	}
	return h
}

func textBody(text string) string {
	return `{"content":[{"type":"text","text":` + string(rawjson.Quote(text)) + `}]}`
}

func shownText(t *testing.T, res *Result) string {
	t.Helper()
	content, _ := rawjson.Get(res.Body, "content")
	var all []string
	for b := range rawjson.Elements(content) {
		s, _ := rawjson.GetString(b, "text")
		all = append(all, s)
	}
	return strings.Join(all, "\n")
}

// words returns a text of n tokens, in lines of ten.
func words(n int) string { return strings.Repeat(strings.Repeat(" word", 9)+"\n", n/10) }

func TestFoldThresholds(t *testing.T) {
	f := newFoldBench(t)
	for _, tc := range []struct {
		name   string
		budget int // 0 is main
		tokens int
		rule   FoldRule
		failed bool
		folded bool
	}{
		{"main, small", 0, 7900, FoldRule{}, false, false},
		{"main, a little over", 0, 9900, FoldRule{}, false, false},
		{"main, large", 0, 10100, FoldRule{}, false, true},
		{"main, lower threshold", 0, 2600, FoldRule{Threshold: 2000}, false, true},
		{"main, a little over a lower threshold", 0, 2400, FoldRule{Threshold: 2000}, false, false},
		{"main, off", 0, 20000, FoldRule{Off: true}, false, false},
		{"branch, small", 8192, 1000, FoldRule{}, false, false},
		{"branch, a little over its part", 8192, 1200, FoldRule{}, false, false},
		{"branch, over its part", 8192, 1300, FoldRule{}, false, true},
		{"branch, an error is read whole", 8192, 1900, FoldRule{}, true, false},
		{"branch, a large error", 8192, 2100, FoldRule{}, true, true},
		{"branch, higher threshold", 8192, 3000, FoldRule{Threshold: 4000}, false, false},
		{"branch, it would not fit", 1000, 1200, FoldRule{Threshold: 4000}, false, true},
		{"branch, an error that would not fit", 1000, 1200, FoldRule{}, true, true},
	} {
		var b *folding.Branch
		if tc.budget > 0 {
			b = f.branch(tc.budget)
		}
		f.policy.Rule = foldRule(tc.rule)
		body := textBody(words(tc.tokens))
		if tc.failed {
			body = string(rawjson.Set([]byte(body), []byte("true"), "isError"))
		}
		c, res, err := f.call(b, body)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if c.Outcome.Folded != tc.folded {
			t.Errorf("%s: folded = %v, want %v", tc.name, c.Outcome.Folded, tc.folded)
		}
		if !tc.folded {
			if string(res.Body) != body {
				t.Errorf("%s: a result that is not folded was changed", tc.name)
			}
			continue
		}
		if c.Outcome.Tokens.Delivered > 400 || c.Outcome.Tokens.Out-c.Outcome.Saved != c.Outcome.Tokens.Delivered || !strings.Contains(shownText(t, res), c.Outcome.Fold) {
			t.Errorf("%s: delivered %d of %d, saved %d: %s", tc.name, c.Outcome.Tokens.Delivered, c.Outcome.Tokens.Out, c.Outcome.Saved, shownText(t, res))
		}
		if failed, _ := rawjson.Get(res.Body, "isError"); (string(failed) == "true") != tc.failed {
			t.Errorf("%s: isError = %s", tc.name, failed)
		}
		if b != nil && c.Outcome.Tokens.BranchUsed != b.BudgetUsed+c.Outcome.Tokens.In+c.Outcome.Tokens.Delivered {
			t.Errorf("%s: the branch was charged %d, delivered were %d", tc.name, c.Outcome.Tokens.BranchUsed, c.Outcome.Tokens.Delivered)
		}
		got, err := f.store.Get(t.Context(), me, c.Attribution.Context, c.Outcome.Fold)
		if err != nil || got.Text != words(tc.tokens) {
			t.Errorf("%s: the store has %d bytes, %v", tc.name, len(got.Text), err)
		}
	}
}

// The preview of a text that one branch_read can deliver says how. The read is the Meter's to charge, so
// what it names must fit beside the preview and the arguments.
func TestPreviewNamesTheWhole(t *testing.T) {
	f := newFoldBench(t)
	whole := regexp.MustCompile(`; all of it: "lines":"1-","max_tokens":(\d+)\]`)
	for budget := 1000; budget <= 20000; budget += 950 {
		for _, size := range []int{500, 1300, 2500, 3990, 6000, 7990, 12000} {
			b := f.branch(budget)
			c, res, err := f.call(b, textBody(words(size)))
			if _, err := f.m.Return(t.Context(), me, b.ID, ""); err != nil && !errors.Is(err, folding.ErrNotActive) {
				t.Fatal(err)
			}
			if err != nil || !c.Outcome.Folded {
				continue // whole, or cut
			}
			left := budget - c.Outcome.Tokens.BranchUsed
			m := whole.FindStringSubmatch(shownText(t, res))
			if m == nil {
				if most := min(f.policy.MainThreshold, sparing(left-readCall)); size+100 < most-f.policy.PreviewTokens {
					t.Errorf("of %d tokens in a branch that has %d left, the preview does not say how to read all", size, left)
				}
				continue
			}
			if n, _ := strconv.Atoi(m[1]); n < size || n > sparing(left-readCall) || n > f.policy.MainThreshold {
				t.Errorf("all of %d tokens are to be read with max_tokens %d, %d are left", size, n, left)
			}
		}
	}
	f.policy.Rule = foldRule(FoldRule{Threshold: 1000})
	if _, res, _ := f.call(nil, textBody(words(5000))); !strings.Contains(shownText(t, res), `"max_tokens":5`) {
		t.Errorf("in main the preview does not say how to read all: %.300s", shownText(t, res))
	}
	f.policy.Rule = foldRule(FoldRule{})
	if _, res, _ := f.call(nil, textBody(words(11000))); strings.Contains(shownText(t, res), "max_tokens") {
		t.Errorf("no read has 11,000 tokens: %.300s", shownText(t, res))
	}
}

// Members beside the text survive; structured content is stored, not shown.
func TestFoldKeepsTheRest(t *testing.T) {
	f := newFoldBench(t)
	f.policy.MainThreshold = 500
	big := words(1000)
	image := `{"type":"image","data":"aGk=","mimeType":"image/png"}`
	link := `{"type":"resource_link","uri":"file:///a","name":"a"}`
	body := `{"_meta":{"x":1.0},"content":[` + image + `,{"type":"text","text":` + string(rawjson.Quote(big)) + `},` + link +
		`,{"type":"resource","resource":{"uri":"mem://r","text":"inner text"}}],"structuredContent":{"rows":[1,2]},"resultType":"complete"}`
	c, res, err := f.call(nil, body)
	if err != nil || !c.Outcome.Folded {
		t.Fatalf("folded = %v, %v", c.Outcome.Folded, err)
	}
	content, _ := rawjson.Get(res.Body, "content")
	var kinds []string
	for b := range rawjson.Elements(content) {
		kind, _ := rawjson.GetString(b, "type")
		kinds = append(kinds, kind)
		if kind == "image" && string(b) != image || kind == "resource_link" && string(b) != link {
			t.Errorf("block changed: %s", b)
		}
	}
	if d := cmp.Diff([]string{"text", "image", "resource_link"}, kinds); d != "" {
		t.Errorf("blocks differ (-want +got):\n%s", d)
	}
	if _, has := rawjson.Get(res.Body, "structuredContent"); has {
		t.Error("a folded result still has structuredContent")
	}
	if x, _ := rawjson.Get(res.Body, "_meta", "x"); string(x) != "1.0" {
		t.Errorf("_meta.x = %s, want 1.0", x)
	}
	if kind, _ := rawjson.GetString(res.Body, "resultType"); kind != "complete" {
		t.Errorf("resultType = %q", kind)
	}
	if h, _ := rawjson.GetString(res.Body, "_meta", foldMeta, "handle"); h != c.Outcome.Fold {
		t.Errorf("_meta names handle %q, want %q", h, c.Outcome.Fold)
	}
	got, err := f.store.Get(t.Context(), me, "", c.Outcome.Fold)
	if err != nil || got.Text != big+"[resource mem://r]\ninner text" || got.Structured != `{"rows":[1,2]}` {
		t.Errorf("stored text ends %q, structured %q, %v", got.Text[max(0, len(got.Text)-60):], got.Structured, err)
	}
}

// An image counts as much as a long text, but it is not the words beside it that
// are large: they are folded only where they are, or where nothing else fits.
func TestFoldBesideAnImage(t *testing.T) {
	f := newFoldBench(t)
	for _, tc := range []struct {
		name           string
		budget, tokens int
		folded         bool
	}{
		{"a caption", 8192, 100, false}, {"a long text", 8192, 1300, true}, {"what does not fit", 1950, 400, true}, {"one that fits", 1800, 100, false},
	} {
		body := `{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"},` + strings.TrimPrefix(textBody(words(tc.tokens)), `{"content":[`)
		c, res, err := f.call(f.branch(tc.budget), body)
		if err != nil || c.Outcome.Folded != tc.folded || !tc.folded && string(res.Body) != body {
			t.Errorf("%s: folded = %v, %v; want %v", tc.name, c.Outcome.Folded, err, tc.folded)
		}
	}
}

// The same text has the same preview, whatever its random handle costs.
func TestPreviewsDoNotDependOnTheHandle(t *testing.T) {
	f := newFoldBench(t)
	f.policy.MainThreshold = 500
	for _, text := range previewtest.Fixtures() {
		shown := map[string]bool{}
		for range 12 {
			c, res, err := f.call(nil, textBody(text.Text))
			if err != nil {
				t.Fatal(text.Name, err)
			}
			if c.Outcome.Folded {
				shown[strings.ReplaceAll(shownText(t, res), c.Outcome.Fold, "")] = true
			}
		}
		if len(shown) > 1 {
			t.Errorf("%s has %d previews: %q", text.Name, len(shown), slices.Collect(maps.Keys(shown)))
		}
	}
}

// Where the structured content is what is large, it is what is previewed, and
// a short text beside it is delivered whole.
func TestFoldStructured(t *testing.T) {
	f := newFoldBench(t)
	f.policy.MainThreshold = 500
	rows := `{"rows":[` + strings.TrimSuffix(strings.Repeat(`{"id":12345,"name":"some name"},`, 200), ",") + `]}`
	for _, text := range []string{"", "200 rows", rows} {
		body := `{"content":[{"type":"text","text":` + string(rawjson.Quote(text)) + `}],"structuredContent":` + rows + `}`
		c, res, err := f.call(nil, body)
		if err != nil || !c.Outcome.Folded {
			t.Fatalf("text %.20q: folded = %v, %v", text, c.Outcome.Folded, err)
		}
		shown := shownText(t, res)
		if !strings.Contains(shown, "200 items in .rows") || !strings.Contains(shown, `.rows[199]: {id:12345,name:"some name"}`) || !strings.Contains(shown, strings.TrimSuffix(text, rows)) {
			t.Errorf("text %.20q: preview is %s", text, shown)
		}
		got, err := f.store.Get(t.Context(), me, "", c.Outcome.Fold)
		if err != nil || got.Text != rows || got.Structured != "" {
			t.Errorf("text %.20q: stored %.40q and %.40q, %v", text, got.Text, got.Structured, err)
		}
	}
}

// A folded result is still what the protocol says it is: a task with its state, an error with its code,
// an image with its data.
func TestFoldKeepsTheProtocol(t *testing.T) {
	big := string(rawjson.Quote(words(11_000)))
	const task = `"taskId":"t","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:01Z","ttl":60000,"pollInterval":5000`
	const related = `"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"x":1}`
	const image = `{"type":"image","data":"AAAA","mimeType":"image/png"`
	for _, tt := range []struct{ in, want string }{ // @ stands for the text and for the preview
		{`{"task":{` + task + `,"statusMessage":@},` + related + `}`, `{"task":{` + task + `,"statusMessage":@},` + related + `}`},
		{`{"task":{` + task + `,"x":@},` + related + `}`, `{"task":{` + task + `,"statusMessage":@},` + related + `}`},
		{`{"resultType":"task",` + task + `,"statusMessage":@,` + related + `}`, `{"resultType":"task",` + task + `,` + related + `,"statusMessage":@}`},
		{`{` + task + `,"error":{"code":-32000,"message":@,"data":{"a":1}}}`, `{` + task + `,"error":{"code":-32000,"message":@}}`},
		{`{` + task + `,"error":{"code":-32000,"message":"m","data":@}}`, `{` + task + `,"error":{"code":-32000,"message":@}}`},
		{`{` + task + `,"result":{"content":[{"type":"text","text":@}],"isError":true}}`, `{` + task + `,"result":{"isError":true,"content":[{"type":"text","text":@}]}}`},
		{`{"content":[` + image + `,"alt":@,"annotations":{"audience":["user"]}}]}`, `{"content":[{"type":"text","text":@},` + image + `,"annotations":{"audience":["user"]}}]}`},
		{`{"content":[{"type":"resource","resource":{"uri":"x","mimeType":"a/b","blob":"AAAA","x":@}}]}`, `{"content":[{"type":"text","text":@},{"type":"resource","resource":{"uri":"x","mimeType":"a/b","blob":"AAAA"}}]}`},
		{`{"resultType":@,"content":[]}`, `{"content":[{"type":"text","text":@}]}`},
		{`{"content":[{"type":"resource_link","uri":"u","name":"n"},{"type":"resource_link","uri":"u","name":@}],"isError":false}`, `{"isError":false,"content":[{"type":"text","text":@},{"type":"resource_link","uri":"u","name":"n"}]}`},
	} {
		for _, budget := range []int{0, 8000} {
			f := newFoldBench(t)
			var branch *folding.Branch
			if budget > 0 {
				branch = f.branch(budget)
			}
			c, res, err := f.call(branch, strings.Replace(tt.in, "@", big, 1))
			if err != nil || !c.Outcome.Folded || c.Outcome.Tokens.Delivered > 1000+1600 {
				t.Fatalf("%s: folded = %v, %v", tt.in, c.Outcome.Folded, err)
			}
			var got, want map[string]any
			preview := regexp.MustCompile(`"\[Folded(\\.|[^"\\])*"`).FindString(string(res.Body))
			if !strings.Contains(preview, c.Outcome.Fold) {
				t.Fatalf("%s: no preview in %s", tt.in, res.Body)
			}
			err1, err2 := json.Unmarshal(res.Body, &got), json.Unmarshal([]byte(strings.Replace(tt.want, "@", preview, 1)), &want)
			for _, at := range []map[string]any{got, in(got, "result")} {
				if meta := in(at, "_meta"); meta != nil {
					if delete(meta, foldMeta); len(meta) == 0 {
						delete(at, "_meta")
					}
				}
			}
			if d := cmp.Diff(want, got); d != "" || err1 != nil || err2 != nil {
				t.Errorf("%s: (-want +got)\n%s%v%v", tt.in, d, err1, err2)
			}
			if stored, err := f.store.Get(t.Context(), me, c.Attribution.Context, c.Outcome.Fold); err != nil || !strings.Contains(stored.Text, "word word word") {
				t.Errorf("%s: the text was not stored: %v", tt.in, err)
			}
		}
	}
}

// in returns an object in an object, or nil.
func in(o map[string]any, name string) map[string]any {
	inner, _ := o[name].(map[string]any)
	return inner
}

// What can't be folded is delivered whole in main: images, and anything while
// the store is out of order.
func TestFoldLosesNothing(t *testing.T) {
	f := newFoldBench(t)
	f.policy.MainThreshold = 500
	body := `{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"}]}`
	if c, res, err := f.call(nil, body); err != nil || c.Outcome.Folded || string(res.Body) != body {
		t.Errorf("an image: folded = %v, %v", c.Outcome.Folded, err)
	}
	_ = f.store.Close()
	body = textBody(words(1000))
	if c, res, err := f.call(nil, body); err != nil || c.Outcome.Folded || string(res.Body) != body {
		t.Errorf("with a closed store: folded = %v, %v", c.Outcome.Folded, err)
	}
	c, res, err := f.call(f.branch(800), body)
	if err != nil || !c.Outcome.Truncated || f.gauge.Result(res) > 800 {
		t.Errorf("with a closed store, over the budget: truncated = %v, %v", c.Outcome.Truncated, err)
	}
}

// A stored result has no secret that the policy lets through, not even beside the result or the error.
// The rest of what stands there is delivered or stored.
func TestStoredWithoutSecrets(t *testing.T) {
	f := newFoldBench(t)
	f.policy.MainThreshold = 500
	extra := []byte(`,"x":"` + strings.Repeat("word ", 200) + secret + `","y":"kept"`)
	for _, answer := range []Result{
		{Body: json.RawMessage(textBody(words(1000) + secret)), Extra: extra},
		{Body: json.RawMessage(textBody(words(1000))), Extra: extra},
		{Error: json.RawMessage(`{"code":1,"message":` + string(rawjson.Quote(words(4000)+secret)) + `}`), Extra: extra},
	} {
		c, res, err := f.run(nil, answer)
		if err != nil || !c.Outcome.Folded {
			t.Fatalf("folded = %v, %v", c.Outcome.Folded, err)
		}
		stored, err := f.store.Get(t.Context(), me, "", c.Outcome.Fold)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(stored.Text, secret) {
			t.Errorf("the secret of %.30s%.30s is stored", answer.Body, answer.Error)
		}
		if !strings.Contains(stored.Text, "word word") || !strings.Contains(string(res.Extra), "kept") {
			t.Errorf("what stands beside %.30s%.30s is lost", answer.Body, answer.Error)
		}
	}
}

// Calls of one branch race for what is left: none is delivered more than it is
// granted, none ends the branch as long as a preview fits, and the books add up.
func TestFoldUnderContention(t *testing.T) {
	f := newFoldBench(t)
	f.policy.Rule = foldRule(FoldRule{Threshold: 5000})
	b := f.branch(8000)
	var wg sync.WaitGroup
	var mu sync.Mutex
	delivered, folded := b.BudgetUsed, 0
	for range 6 {
		wg.Go(func() {
			c, _, err := f.call(b, textBody(words(1900)))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("a call failed: %v", err)
				return
			}
			delivered += c.Outcome.Tokens.Delivered + c.Outcome.Tokens.In
			if c.Outcome.Folded {
				folded++
			}
			if c.Outcome.Truncated {
				t.Errorf("a result was cut at %d tokens, want a preview", c.Outcome.Tokens.Delivered)
			}
		})
	}
	wg.Wait()
	now, _, err := f.m.Status(t.Context(), me, folding.StatusRequest{BranchID: b.ID})
	if err != nil || now.BudgetUsed != delivered || now.Status != folding.StatusActive || folded != 2 {
		t.Errorf("%d folded, %d delivered; the branch is %s with %d used, %v", folded, delivered, now.Status, now.BudgetUsed, err)
	}
}

// What a tool makes smaller is counted before it is delivered: a budget holds also
// where that is still too large.
func TestShrunkIsCounted(t *testing.T) {
	f := newFoldBench(t)
	for _, tc := range []struct {
		name   string
		shrunk int // tokens, about
		cut    bool
	}{{"fits", 100, false}, {"does not", 900, true}} {
		b := f.branch(300)
		c := &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: Target{Method: "tools/call", Name: "branch_read", Metered: true}, Attribution: Attribution{Branch: b}}
		res, err := Meter(f.m, noLimits, f.gauge)(func(_ context.Context, c *Call) (*Result, error) {
			c.Outcome.Shrink = func(int) *Result { return &Result{Body: json.RawMessage(textBody(words(tc.shrunk)))} }
			return &Result{Body: json.RawMessage(textBody(words(1000)))}, nil
		})(t.Context(), c)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if n := f.gauge.Result(res); n > 299 || n != c.Outcome.Tokens.Delivered || c.Outcome.Truncated != tc.cut {
			t.Errorf("%s: %d tokens delivered, %d booked, cut %v; the branch had 299", tc.name, n, c.Outcome.Tokens.Delivered, c.Outcome.Truncated)
		}
	}
}

// A result that is folded, and folded again because a limit grants less, is stored once, under the handle
// that the host reads.
func TestFoldedTwiceIsStoredOnce(t *testing.T) {
	f := newFoldBench(t)
	l := limitOf(t, "l", 300, limitStore(t), limits.Options{})
	c := &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: Target{Server: "db", Method: "tools/call", Name: "query", Metered: true}}
	folds, text := 0, previewtest.Fixtures()[0].Text
	res, err := wrap(func(context.Context, *Call) (*Result, error) {
		return &Result{Body: json.RawMessage(textBody(text))}, nil
	}, Meter(f.m, func() *Limits { return l }, f.gauge), func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			res, err := next(ctx, c)
			again := c.Outcome.Shrink
			first := c.Outcome.Fold
			c.Outcome.Shrink = func(budget int) *Result {
				folds++
				small := again(budget)
				if c.Outcome.Fold != first {
					t.Errorf("the handle was %s, and is %s", first, c.Outcome.Fold)
				}
				return small
			}
			return res, err
		}
	}, Fold(f.store, f.gauge, func() *FoldPolicy { return &f.policy }, testBoundary(t), slog.New(slog.DiscardHandler)))(t.Context(), c)
	if err != nil || folds != 1 || !c.Outcome.Folded || !strings.Contains(shownText(t, res), c.Outcome.Fold) {
		t.Fatalf("folded again %d times: %v, %+v", folds, err, c.Outcome)
	}
	if s, err := f.store.Get(t.Context(), me, "", c.Outcome.Fold); err != nil || s.Text != text {
		t.Errorf("stored are %d bytes, %v", len(s.Text), err)
	}
}

// The saving on the generated fixtures, in tokens of o200k_base.
func TestFoldSaving(t *testing.T) {
	f := newFoldBench(t)
	raw, shown := 0, 0
	for _, fx := range previewtest.Fixtures() {
		f.policy.MainThreshold = 1
		c, res, err := f.call(nil, textBody(fx.Text))
		if err != nil || !c.Outcome.Folded {
			t.Fatalf("%s: folded = %v, %v", fx.Name, c.Outcome.Folded, err)
		}
		n := f.gauge.Result(res)
		if n > f.policy.PreviewTokens || n >= c.Outcome.Tokens.Out {
			t.Errorf("%s: preview of %d tokens for %d", fx.Name, n, c.Outcome.Tokens.Out)
		}
		raw, shown = raw+c.Outcome.Tokens.Out, shown+n
		t.Logf("%-14s %-9s %6d -> %4d", fx.Name, fx.Kind, c.Outcome.Tokens.Out, n)
	}
	saved := 100 - 100*float64(shown)/float64(raw)
	t.Logf("%d fixtures, %d -> %d tokens: %.1f %% not delivered", len(previewtest.Fixtures()), raw, shown, saved)
	if saved < 90 {
		t.Errorf("previews save %.1f %%, want 90 %% at least", saved)
	}
}

func BenchmarkFold(b *testing.B) {
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		b.Fatal(err)
	}
	store, err := results.Open(filepath.Join(b.TempDir(), "results.db"), results.Config{Quota: 64 << 20, TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	policy := FoldPolicy{MainThreshold: 1, BranchFraction: 1, PreviewTokens: 400, Rule: foldRule(FoldRule{})}
	for _, f := range previewtest.Fixtures() {
		body := json.RawMessage(textBody(f.Text))
		h := wrap(func(context.Context, *Call) (*Result, error) { return &Result{Body: body}, nil },
			Fold(store, TokenMeter{counter, 1600}, func() *FoldPolicy { return &policy }, testBoundary(b), slog.New(slog.DiscardHandler)))
		b.Run(f.Name, func(b *testing.B) {
			b.SetBytes(int64(len(f.Text)))
			for b.Loop() {
				c := &Call{Origin: Origin{Identity: Identity{Principal: "p"}}, Target: Target{Server: "s", Method: "tools/call", Name: "t", Metered: true}}
				if _, err := h(b.Context(), c); err != nil || !c.Outcome.Folded {
					b.Fatal(err, c.Outcome.Folded)
				}
			}
		})
	}
}
