package trace

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// The OTLP JSON encoding of spans: opentelemetry-proto, trace/v1/trace.proto,
// with ids in hex and times as decimal strings. One line is one export
// request, which the file receiver of a collector reads as it stands.
type otlpSpan struct {
	TraceID    string     `json:"traceId"`
	SpanID     string     `json:"spanId"`
	ParentID   string     `json:"parentSpanId,omitempty"`
	Name       string     `json:"name"`
	Kind       int        `json:"kind"`
	Start      string     `json:"startTimeUnixNano"`
	End        string     `json:"endTimeUnixNano"`
	Attributes []otlpAttr `json:"attributes,omitempty"`
	Links      []otlpLink `json:"links,omitempty"`
	Status     otlpStatus `json:"status"`
}

type otlpAttr struct {
	Key   string         `json:"key"`
	Value map[string]any `json:"value"`
}

type otlpLink struct {
	TraceID string `json:"traceId"`
	SpanID  string `json:"spanId"`
}

type otlpStatus struct {
	Code    int    `json:"code,omitempty"` // 2 is error
	Message string `json:"message,omitempty"`
}

const (
	otlpInternal  = 1
	otlpServer    = 2
	otlpBatch     = 500
	otlpScopeName = "github.com/foldgate/foldgate"
)

// otlpWriter turns pairs of records into spans: a request and its response are
// a call's span, a push and its pop a branch's. A span's parent is the host's
// where it sent one, else the branch it is in, so that a branch is one tree.
type otlpWriter struct {
	w     *bufio.Writer
	open  map[string]*Record // requests by id, pushes by context
	batch []otlpSpan
}

func writeOTLP(w io.Writer, records iter.Seq[*Record]) error {
	o := &otlpWriter{w: bufio.NewWriter(w), open: map[string]*Record{}}
	var order []string
	for r := range records {
		kind := canonicalKind(r.Kind)
		switch {
		case strings.HasPrefix(kind, "mcp/request"):
			o.open[r.ID] = r
			order = append(order, r.ID)
		case kind == KindPush:
			o.open["branch:"+r.Context] = r
			order = append(order, "branch:"+r.Context)
		case kind == KindPop:
			o.end("branch:"+r.Context, r)
		case strings.HasPrefix(kind, "mcp/response"):
			for _, id := range r.CorrelationID {
				o.end(id, r)
			}
		}
	}
	for _, key := range order { // what has no end in the selection
		if start := o.open[key]; start != nil {
			o.add(key, start, start)
		}
	}
	o.flush()
	return o.w.Flush()
}

func (o *otlpWriter) end(key string, last *Record) {
	if start := o.open[key]; start != nil {
		delete(o.open, key)
		o.add(key, start, last)
	}
}

func (o *otlpWriter) add(key string, start, last *Record) {
	s := otlpSpan{SpanID: spanID(key), Kind: otlpServer, Start: nanos(start.TS), End: nanos(last.TS)}
	s.TraceID, s.ParentID = traceOf(start)
	in := contextpath.Path(start.Context)
	a := mergedAudit(start, last)
	if strings.HasPrefix(key, "branch:") {
		s.Name, s.Kind = "branch "+in.Leaf(), otlpInternal
		in = in.Parent()
	} else {
		s.Name = strings.TrimSpace(methodOf(start) + " " + a.Tool)
	}
	if branch := branchOf(string(in)); s.ParentID == "" && branch != "" {
		s.ParentID = spanID("branch:" + branch)
	}
	s.Attributes = otlpAttributes(start, a)
	for _, id := range start.CorrelationID {
		s.Links = append(s.Links, otlpLink{s.TraceID, spanID(id)})
	}
	if a.IsError {
		s.Status = otlpStatus{Code: 2}
	}
	if o.batch = append(o.batch, s); len(o.batch) == otlpBatch {
		o.flush()
	}
}

func (o *otlpWriter) flush() {
	if len(o.batch) == 0 {
		return
	}
	line, err := json.Marshal(map[string]any{"resourceSpans": []any{map[string]any{
		"resource":   map[string]any{"attributes": []otlpAttr{attr("service.name", "foldgate")}},
		"scopeSpans": []any{map[string]any{"scope": map[string]any{"name": otlpScopeName}, "spans": o.batch}},
	}}})
	if err == nil { // strings and numbers always encode
		o.w.Write(append(line, '\n')) // Flush reports the error
	}
	o.batch = o.batch[:0]
}

// traceOf returns the trace id and the host's parent span, which is "" without
// a valid traceparent.
func traceOf(r *Record) (trace, parent string) {
	a := r.Audit
	if a == nil {
		a = &Audit{}
	}
	if tp, ok := ParseTraceparent(a.Traceparent); ok {
		return hex.EncodeToString(tp.Trace[:]), hex.EncodeToString(tp.Parent[:])
	}
	id := TraceID(r.ID, a.Principal, a.Session, r.Context)
	return hex.EncodeToString(id[:]), ""
}

func spanID(key string) string {
	id := SpanID(key)
	return hex.EncodeToString(id[:])
}

func nanos(ts string) string { return strconv.FormatInt(micros(ts)*1000, 10) }

func methodOf(r *Record) string {
	if r.Audit != nil && r.Audit.Method != "" {
		return r.Audit.Method
	}
	_, method, _ := strings.Cut(r.Kind, ":")
	return method
}

// mergedAudit is the end's where there is one, with the names of the start.
func mergedAudit(start, last *Record) Audit {
	var a Audit
	if last.Audit != nil {
		a = *last.Audit
	}
	if s := start.Audit; s != nil {
		for _, f := range []struct {
			to   *string
			from string
		}{{&a.Session, s.Session}, {&a.Principal, s.Principal}, {&a.Server, s.Server}, {&a.Tool, s.Tool}, {&a.Era, s.Era}} {
			if *f.to == "" {
				*f.to = f.from
			}
		}
		if a.Tokens == nil {
			a.Tokens = s.Tokens
		}
	}
	return a
}

func attr(key string, value any) otlpAttr {
	switch v := value.(type) {
	case int:
		return otlpAttr{key, map[string]any{"intValue": strconv.Itoa(v)}}
	case bool:
		return otlpAttr{key, map[string]any{"boolValue": v}}
	}
	return otlpAttr{key, map[string]any{"stringValue": fmt.Sprint(value)}}
}

// otlpAttributes names things as the semantic conventions for MCP do, and
// what they do not know under foldgate.
func otlpAttributes(r *Record, a Audit) []otlpAttr {
	out := []otlpAttr{attr("foldgate.envelope.id", r.ID)}
	text := func(key, value string) {
		if value != "" {
			out = append(out, attr(key, value))
		}
	}
	if isRequest(r.Kind) {
		text("mcp.method.name", methodOf(r))
	}
	if a.Tool != "" {
		text("gen_ai.operation.name", "execute_tool")
		text("gen_ai.tool.name", a.Tool)
	}
	text("mcp.session.id", a.Session)
	text("mcp.protocol.version", a.Era)
	text("foldgate.context", r.Context)
	text("foldgate.server", a.Server)
	text("foldgate.principal", a.Principal)
	if t := a.Tokens; t != nil {
		out = append(out, attr("foldgate.tokens.in", t.In), attr("foldgate.tokens.delivered", t.Delivered))
		text("foldgate.tokens.counter", t.Counter)
	}
	if a.Decision != nil && a.Decision.Result == Blocked {
		text("foldgate.blocked", a.Decision.Reason)
	}
	if a.IsError {
		text("error.type", "tool_error")
	}
	return out
}
