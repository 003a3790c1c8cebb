package trace

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"strconv"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// appendAudit appends a as encoding/json writes it, without HTML escaping.
// Every record has one, so what most of them hold is written by hand.
func appendAudit(b []byte, a *Audit) ([]byte, error) {
	o := object{append(b, '{'), nil}
	for _, f := range [...]struct{ key, value string }{
		{`"session":`, a.Session}, {`"principal":`, a.Principal}, {`"server":`, a.Server}, {`"tool":`, a.Tool},
		{`"method":`, a.Method}, {`"era":`, a.Era}, {`"rung":`, a.Rung}, {`"thread":`, a.Thread},
	} {
		o.text(f.key, f.value)
	}
	if a.Hops != nil {
		o.any(`"hops":`, a.Hops)
	}
	if a.Decision != nil {
		o.any(`"decision":`, a.Decision)
	}
	if t := a.Tokens; t != nil {
		o.key(`"tokens":`)
		in := object{append(o.b, '{'), nil}
		in.text(`"counter":`, t.Counter)
		in.number(`"in":`, int64(t.In))
		in.number(`"out":`, int64(t.Out))
		in.number(`"delivered":`, int64(t.Delivered))
		in.number(`"branch_used":`, int64(t.Used))
		in.number(`"branch_budget":`, int64(t.Budget))
		in.number(`"freed":`, int64(t.Freed))
		o.b = append(in.b, '}')
	}
	if len(a.Scrub) > 0 {
		o.any(`"scrub":`, a.Scrub)
	}
	if a.Fold != nil {
		o.any(`"fold":`, a.Fold)
	}
	if a.Read != nil {
		o.any(`"read":`, a.Read)
	}
	o.text(`"traceparent":`, a.Traceparent)
	if len(a.Workflow) > 0 {
		o.any(`"workflow":`, a.Workflow)
	}
	switch ms := math.Abs(a.MS); {
	case ms >= 1e-6 && ms < 1e21:
		o.key(`"ms":`)
		o.b = strconv.AppendFloat(o.b, a.MS, 'f', -1, 64)
	case ms != 0: // also what is no number, which is an error
		o.any(`"ms":`, a.MS)
	}
	o.number(`"bytes":`, a.Bytes)
	o.flag(`"is_error":true`, a.IsError)
	o.flag(`"late":true`, a.Late)
	o.flag(`"ambiguous":true`, a.Ambiguous)
	o.flag(`"truncated":true`, a.Truncated)
	o.flag(`"overbudget":true`, a.OverBudget)
	o.flag(`"lost":true`, a.Lost)
	if len(a.Deprecated) > 0 {
		o.any(`"deprecated":`, a.Deprecated)
	}
	return append(o.b, '}'), o.err
}

// object is a JSON object that is being written; members with zero values are
// left out.
type object struct {
	b   []byte
	err error // the first
}

// key begins a member. The text has the quotes and the colon.
func (o *object) key(text string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, text...)
}

func (o *object) text(key, value string) {
	if value != "" {
		o.key(key)
		o.b = rawjson.AppendQuote(o.b, value)
	}
}

func (o *object) number(key string, value int64) {
	if value != 0 {
		o.key(key)
		o.b = strconv.AppendInt(o.b, value, 10)
	}
}

func (o *object) flag(member string, set bool) {
	if set {
		o.key(member)
	}
}

// any appends what is rare as encoding/json writes it.
func (o *object) any(key string, value any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		o.err = cmp.Or(o.err, err)
		return
	}
	o.key(key)
	o.b = append(o.b, bytes.TrimRight(buf.Bytes(), "\n")...)
}
