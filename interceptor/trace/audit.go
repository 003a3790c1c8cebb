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
	o := object{b: append(b, '{')}
	o.text("session", a.Session)
	o.text("principal", a.Principal)
	o.text("team", a.Team)
	o.text("server", a.Server)
	o.text("tool", a.Tool)
	o.text("via", a.Via)
	o.text("for_tool", a.ForTool)
	o.text("method", a.Method)
	o.text("era", a.Era)
	o.text("rung", a.Rung)
	o.text("thread", a.Thread)
	o.value("hops", a.Hops, a.Hops != nil)
	o.decision(a.Decision)
	o.tokens(a.Tokens)
	o.pointer("args", a.Args)
	o.value("scrub", &a.Scrub, len(a.Scrub) > 0)
	o.value("fold", a.Fold, a.Fold != nil)
	o.value("read", a.Read, a.Read != nil)
	o.value("model", a.Model, a.Model != nil)
	o.value("injection", a.Injection, a.Injection != nil)
	o.text("traceparent", a.Traceparent)
	o.value("workflow", &a.Workflow, len(a.Workflow) > 0)
	o.decimal("ms", a.MS)
	o.number("bytes", a.Bytes)
	o.flag("is_error", a.IsError)
	o.flag("late", a.Late)
	o.flag("ambiguous", a.Ambiguous)
	o.flag("truncated", a.Truncated)
	o.flag("overbudget", a.OverBudget)
	o.number("left_out", int64(a.LeftOut))
	o.flag("lost", a.Lost)
	o.value("deprecated", &a.Deprecated, len(a.Deprecated) > 0)
	return append(o.b, '}'), o.err
}

// object is a JSON object that is being appended to b. Its methods leave zero members out.
type object struct {
	b   []byte
	err error
}

func (o *object) key(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(append(append(o.b, '"'), name...), `":`...)
}

func (o *object) text(name, v string) {
	if v != "" {
		o.key(name)
		o.b = rawjson.AppendQuote(o.b, v)
	}
}

func (o *object) number(name string, v int64) {
	if v != 0 {
		o.key(name)
		o.b = strconv.AppendInt(o.b, v, 10)
	}
}

func (o *object) pointer(name string, v *int) {
	if v != nil {
		o.key(name)
		o.b = strconv.AppendInt(o.b, int64(*v), 10)
	}
}

func (o *object) decimal(name string, v float64) {
	if 1e-6 <= v && v < 1e21 { // encoding/json writes others with an exponent, or refuses them
		o.key(name)
		o.b = strconv.AppendFloat(o.b, v, 'f', -1, 64)
	} else {
		o.value(name, &v, v != 0)
	}
}

func (o *object) flag(name string, v bool) {
	if v {
		o.key(name)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) decision(d *Decision) {
	if d == nil {
		return
	}
	o.key("decision")
	o.b = rawjson.AppendQuote(append(o.b, `{"result":`...), d.Result)
	o.text("reason", d.Reason)
	o.text("rule", d.Rule)
	o.b = append(o.b, '}')
}

func (o *object) tokens(t *Tokens) {
	if t == nil {
		return
	}
	o.key("tokens")
	o.b = append(o.b, '{')
	o.text("counter", t.Counter)
	o.number("in", int64(t.In))
	o.number("out", int64(t.Out))
	o.number("delivered", int64(t.Delivered))
	o.number("branch_used", int64(t.Used))
	o.number("branch_budget", int64(t.Budget))
	o.number("freed", int64(t.Freed))
	o.pointer("charged", t.Charged)
	o.flag("charged_in_branch", t.InBranch)
	o.b = append(o.b, '}')
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
		o.key(name)
		o.b = append(o.b, bytes.TrimSuffix(raw.Bytes(), []byte("\n"))...)
	}
}
