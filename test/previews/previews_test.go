//go:build e2e

// Package previews measures what previews of real outputs answer. The outputs come from programs
// and packages that the other tests need too. The questions were written before anyone saw a
// preview of these outputs, and each has a rule that finds its answer in the whole text, because
// outputs differ between machines.
package previews

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"os/exec"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/testbin"
)

var (
	only = flag.String("outputs", "", "measure only the outputs whose sort/name has this part")
	bin  = flag.String("binary", "", "measure this foldgate instead of the one of this tree")
	save = flag.String("save", "", "keep outputs, previews and the record of each question in this directory")
	kept = flag.String("kept", "", "measure the outputs that -save kept in this directory, if they are there")
	set  = flag.String("set", "", "the directory of outputs.txt and questions.txt that TestSet measures")
)

const threshold = 1000 // a branch of the default size folds from about here

// Set once by TestMain; the directory is removed at the end.
var foldgateBin, workDir string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "foldgate-previews-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		workDir = dir
		defer os.RemoveAll(dir)
		if foldgateBin = *bin; foldgateBin != "" {
			return m.Run()
		}
		// The race detector would take most of the time; the other tests have it.
		if foldgateBin, err = testbin.Build(dir, "github.com/foldgate/foldgate/cmd/foldgate", "-race=false"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// A reader calls the gateway.
type reader struct {
	t   *testing.T
	ctx context.Context
	c   *mcpclient.Client
}

// newReader starts the gateway in front of the files in dir.
func newReader(t *testing.T, dir string) *reader {
	t.Helper()
	config := filepath.Join(t.TempDir(), "foldgate.yaml")
	write(t, config, fmt.Sprintf("state_dir: state\nupstreams:\n  files: {builtin: files, roots: [%q]}\nresults: {tools: {\"files__*\": {threshold: %d}}}\n", dir, threshold))
	cmd := exec.Command(foldgateBin, "run", "--config", config)
	cmd.Dir = filepath.Dir(config)
	cmd.Stderr = os.Stderr
	if *save != "" {
		log, err := os.Create(filepath.Join(*save, "gateway.log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = log
	}
	c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	if _, err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return &reader{t, ctx, c}
}

// call returns the text of a result, and whether it is no error.
func (r *reader) call(name string, args map[string]any) (text string, ok bool) {
	r.t.Helper()
	params, err := json.Marshal(map[string]any{"name": name, "arguments": args})
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := r.c.Call(r.ctx, "tools/call", string(params))
	if err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
	if m.Error != nil {
		return string(m.Error), false
	}
	var res struct {
		Content []struct{ Text string }
		IsError bool
	}
	if err := json.Unmarshal(m.Result, &res); err != nil {
		r.t.Fatalf("%s: %s: %v", name, m.Result, err)
	}
	var texts []string
	for _, c := range res.Content {
		texts = append(texts, c.Text)
	}
	return strings.Join(texts, "\n"), !res.IsError
}

var (
	handleForm = regexp.MustCompile(`res_[0-9a-z]{26}`)
	kindForm   = regexp.MustCompile(`^\[Folded ([^:\n]+?):`)
)

// A row is one line of the table: what was reached over the outputs of a sort.
type row struct {
	sort                               string
	outputs, kinds                     int
	got                                map[string]int // kinds
	questions, preview, headTail, read int
	tokens, readTokens, reads          int
}

func (a *row) add(b *row) {
	a.outputs, a.kinds, a.questions, a.preview = a.outputs+b.outputs, a.kinds+b.kinds, a.questions+b.questions, a.preview+b.preview
	a.headTail, a.read, a.tokens = a.headTail+b.headTail, a.read+b.read, a.tokens+b.tokens
	a.readTokens, a.reads = a.readTokens+b.readTokens, a.reads+b.reads
}

func share(n, of int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(of, 1))) }

func TestPreviews(t *testing.T) {
	rows, total := measure(t, outputScripts, questionText)
	if *only == "" {
		check(t, rows, total)
	}
}

// The previews of sorts that nobody looked at answer more than the head and the tail, too.
func TestHeldOut(t *testing.T) {
	_, total := measure(t, heldOutScripts, heldOutQuestions)
	if *only == "" && (total.preview < total.headTail || total.outputs < 8) {
		t.Errorf("of %d questions about %d outputs previews answer %d, the head and the tail %d", total.questions, total.outputs, total.preview, total.headTail)
	}
}

// TestSet measures a set of outputs that is not in the repository, as the corpus is.
func TestSet(t *testing.T) {
	if *set == "" {
		t.Skip("no -set")
	}
	var texts [2]string
	for i, name := range []string{"outputs.txt", "questions.txt"} {
		text, err := os.ReadFile(filepath.Join(*set, name))
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	measure(t, texts[0], texts[1])
}

// measure makes the outputs, reads each through the gateway, and asks the questions.
func measure(t *testing.T, scripts, questions string) (rows []*row, total *row) {
	t.Helper()
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	if *save != "" {
		if err := os.MkdirAll(*save, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sorts := parseQuestions(t, questions)
	start := time.Now()
	outputs := makeOutputs(t, scripts, *only)
	t.Logf("outputs made in %v", time.Since(start).Round(time.Second))
	dir := t.TempDir()
	r := newReader(t, dir)
	var record strings.Builder
	var missing, weak []string
	for _, o := range outputs {
		if o.err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", o, o.err))
			continue
		}
		if !counter.Exceeds(o.text, threshold*13/10) {
			missing = append(missing, fmt.Sprintf("%s: only %d tokens", o, counter.Count(o.text)))
			continue
		}
		s := sorts[o.sort]
		if s == nil {
			t.Errorf("questions.txt has nothing on %s", o.sort)
			continue
		}
		at := slices.IndexFunc(rows, func(r *row) bool { return r.sort == o.sort })
		if at < 0 {
			at, rows = len(rows), append(rows, &row{sort: o.sort, got: map[string]int{}})
		}
		row := rows[at]
		file := o.file()
		write(t, filepath.Join(dir, file), o.text)
		preview, ok := r.call("files__read_file", map[string]any{"path": file})
		if !ok {
			t.Errorf("%s: %.300s", o, preview)
			continue
		}
		size := counter.Count(preview)
		handle := handleForm.FindString(preview)
		row.outputs++
		kind := "whole"
		if k := kindForm.FindStringSubmatch(preview); k != nil {
			kind = k[1]
		}
		row.got[kind]++
		if s.kind.MatchString(kind) {
			row.kinds++
		}
		row.tokens += size
		headTail := headAndTail(counter, o.text, size)
		fmt.Fprintf(&record, "## %s: kind %s, %d tokens\n", o, kind, size)
		if *save != "" {
			write(t, filepath.Join(*save, file), o.text)
			write(t, filepath.Join(*save, file+".preview"), preview)
		}
		for _, q := range s.questions {
			a, asked := q.instance(t, o)
			if !asked {
				continue
			}
			if why := a.weak(o.text); why != "" {
				weak = append(weak, fmt.Sprintf("%s: %s %s", o, a.ask, why))
				continue
			}
			row.questions++
			inPreview, inHeadTail := a.in(preview, false, 0), a.in(headTail, false, 0)
			if inHeadTail {
				row.headTail++
			}
			how := "neither"
			answer := ""
			switch {
			case inPreview:
				row.preview++
				row.read++
				how = "preview"
			case handle != "":
				answer = a.readOnce(r, handle)
				row.reads++
				row.readTokens += counter.Count(answer)
				if a.in(answer, true, a.matches(o.text)) {
					row.read++
					how = "read"
				}
			}
			fmt.Fprintf(&record, "%-8s head+tail=%-5v %s\n         want %s; read %s\n", how, inHeadTail, a.ask, a.facts, a.read)
			if how == "neither" {
				fmt.Fprintf(&record, "         got %.300q\n", answer)
			}
		}
	}
	total = &row{sort: "all"}
	var table strings.Builder
	fmt.Fprintf(&table, "| sort | outputs | kinds right | kinds | questions | preview | head and tail | preview and one read | tokens of a preview |\n|---|---:|---:|---|---:|---:|---:|---:|---:|\n")
	for _, r := range append(rows, total) {
		if r != total {
			total.add(r)
		}
		var got []string
		for k, n := range r.got {
			got = append(got, fmt.Sprintf("%s %d", k, n))
		}
		slices.Sort(got)
		fmt.Fprintf(&table, "| %s | %d | %d | %s | %d | %d | %d | %d | %d |\n", r.sort, r.outputs, r.kinds, strings.Join(got, ", "), r.questions, r.preview, r.headTail, r.read, r.tokens/max(r.outputs, 1))
	}
	summary := fmt.Sprintf("%d outputs of %d sorts, %d questions; kinds right %s; preview %s, head and tail %s, preview and one read %s; %d tokens a preview, %d a read; %d questions dropped as too easy to match; %v in all",
		total.outputs, len(rows), total.questions, share(total.kinds, total.outputs), share(total.preview, total.questions), share(total.headTail, total.questions),
		share(total.read, total.questions), total.tokens/max(total.outputs, 1), total.readTokens/max(total.reads, 1), len(weak), time.Since(start).Round(time.Second))
	t.Logf("\n%s\n%s\nnot made here:\n%s", table.String(), summary, strings.Join(missing, "\n"))
	if *save != "" {
		write(t, filepath.Join(*save, "TABLE.md"), table.String()+"\n"+summary+"\n\nnot made here:\n"+strings.Join(missing, "\n")+"\n")
		write(t, filepath.Join(*save, "RECORD.txt"), record.String())
		write(t, filepath.Join(*save, "WEAK.txt"), strings.Join(weak, "\n")+"\n")
		slices.SortFunc(outputs, func(a, b *output) int { return int(b.cpu - a.cpu) })
		var slow strings.Builder
		for _, o := range outputs {
			fmt.Fprintln(&slow, o.cpu.Round(time.Millisecond), o)
		}
		write(t, filepath.Join(*save, "SLOW.txt"), slow.String())
	}
	return rows, total
}

// headAndTail shows the start and the end of a text in so many tokens, under a line with its size.
func headAndTail(counter *budget.Counter, text string, tokens int) string {
	lines := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
	title := fmt.Sprintf("[%d lines, %d bytes; the head and the tail]\n", lines, len(text))
	room := (tokens - counter.Count(title) - 4) / 2
	head, _ := counter.Truncate(text, room)
	// A tail of so many tokens, found by halving.
	low, high := max(0, len(text)-20*room), len(text)
	for low < high {
		mid := (low + high) / 2
		if counter.Exceeds(text[mid:], room) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return title + head + "\n...\n" + text[low:]
}

// The least that previews reached, less what the outputs of another machine may cost.
const (
	kindsRight     = 0.93
	previewAnswers = 0.63
	readAnswers    = 0.975
	overHeadTail   = 0.15 // questions that the preview answers beyond the head and the tail
	previewTokens  = 355  // on average
	worseSorts     = 4    // in which the head and the tail answer more
)

// check holds the measurement to its size, and the previews to what they reached.
func check(t *testing.T, rows []*row, total *row) {
	t.Helper()
	if total.outputs < 150 || len(rows) < 40 || total.questions < 300 {
		t.Errorf("%d outputs of %d sorts with %d questions, want 150, 40 and 300 at least", total.outputs, len(rows), total.questions)
	}
	for _, f := range []struct {
		name string
		n    int
		of   int
		want float64
	}{
		{"kinds right", total.kinds, total.outputs, kindsRight},
		{"questions that the preview answers", total.preview, total.questions, previewAnswers},
		{"questions that the preview or one read answers", total.read, total.questions, readAnswers},
		{"questions that the preview answers beyond the head and the tail", total.preview - total.headTail, total.questions, overHeadTail},
	} {
		if float64(f.n) < f.want*float64(f.of) {
			t.Errorf("%s: %d of %d, %s, want %.1f %%", f.name, f.n, f.of, share(f.n, f.of), 100*f.want)
		}
	}
	if total.tokens > previewTokens*total.outputs {
		t.Errorf("%d tokens a preview, want at most %d", total.tokens/total.outputs, previewTokens)
	}
	var worse []string
	for _, r := range rows {
		if r.headTail > r.preview {
			worse = append(worse, fmt.Sprintf("%s (%d, %d)", r.sort, r.preview, r.headTail))
		}
	}
	if t.Logf("sorts of which the head and the tail answer more: %s", strings.Join(worse, ", ")); len(worse) > worseSorts {
		t.Errorf("the head and the tail answer more of %d sorts, want at most %d", len(worse), worseSorts)
	}
}
