package trace

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// appendAudit appends a as encoding/json encodes it, without HTML escaping. It does not use reflection
// for the members that most records have: that took 3 % of a call.
func appendAudit(b []byte, a *Audit) ([]byte, error) {
	o := object{Appender: rawjson.Appender{B: append(b, '{')}}
	o.Text("session", a.Session)
	o.Text("principal", a.Principal)
	o.Text("team", a.Team)
	o.Text("server", a.Server)
	o.Text("tool", a.Tool)
	o.Text("via", a.Via)
	o.Text("for_tool", a.ForTool)
	o.Text("method", a.Method)
	o.Text("era", a.Revision)
	o.Text("rung", a.Source)
	o.Text("thread", a.Thread)
	o.decision(a.Decision)
	o.tokens(a.Tokens)
	o.pointer("args", a.Args)
	o.value("scrub", &a.Scrub, len(a.Scrub) > 0)
	o.value("fold", a.Fold, a.Fold != nil)
	o.value("read", a.Read, a.Read != nil)
	o.value("model", a.Model, a.Model != nil)
	o.value("injection", a.Injection, a.Injection != nil)
	o.Text("traceparent", a.Traceparent)
	o.value("workflow", &a.Workflow, len(a.Workflow) > 0)
	o.decimal("ms", a.MS)
	o.Number("bytes", a.Bytes)
	o.Flag("is_error", a.IsError)
	o.Flag("late", a.Late)
	o.Flag("ambiguous", a.Ambiguous)
	o.Flag("truncated", a.Truncated)
	o.Flag("overbudget", a.OverBudget)
	o.Number("left_out", int64(a.LeftOut))
	o.Flag("lost", a.Lost)
	o.value("deprecated", &a.Deprecated, len(a.Deprecated) > 0)
	return append(o.B, '}'), o.err
}

// object is a JSON object that is being appended to. Its methods leave zero members out.
type object struct {
	rawjson.Appender
	err error
}

func (o *object) pointer(name string, v *int) {
	if v != nil {
		o.Key(name)
		o.B = strconv.AppendInt(o.B, int64(*v), 10)
	}
}

func (o *object) decimal(name string, v float64) {
	if 1e-6 <= v && v < 1e21 { // encoding/json writes others with an exponent, or refuses them
		o.Key(name)
		o.B = strconv.AppendFloat(o.B, v, 'f', -1, 64)
	} else {
		o.value(name, &v, v != 0)
	}
}

func (o *object) decision(d *Decision) {
	if d == nil {
		return
	}
	o.Key("decision")
	o.B = rawjson.AppendQuote(append(o.B, `{"result":`...), d.Result)
	o.Text("reason", d.Reason)
	o.Text("rule", d.Rule)
	o.B = append(o.B, '}')
}

func (o *object) tokens(t *Tokens) {
	if t == nil {
		return
	}
	o.Key("tokens")
	o.B = append(o.B, '{')
	o.Text("counter", t.Counter)
	o.Number("in", int64(t.In))
	o.Number("out", int64(t.Out))
	o.Number("delivered", int64(t.Delivered))
	o.Number("branch_used", int64(t.Used))
	o.Number("branch_budget", int64(t.Budget))
	o.Number("freed", int64(t.Freed))
	o.pointer("charged", t.Charged)
	o.Flag("charged_in_branch", t.InBranch)
	o.B = append(o.B, '}')
}

// value appends a member that few records have. v is a pointer, so a member that is not there allocates
// nothing.
func (o *object) value(name string, v any, there bool) {
	if !there || o.err != nil {
		return
	}
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	if o.err = enc.Encode(v); o.err == nil {
		o.Key(name)
		o.B = append(o.B, bytes.TrimSuffix(raw.Bytes(), []byte("\n"))...)
	}
}
