package render

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// The OTLP JSON encoding of spans: opentelemetry-proto, trace/v1/trace.proto, with ids in hex and
// times as decimal strings. One line is one export request, as the file receiver of a collector
// reads them. No exporter of OpenTelemetry for Go writes this encoding, and protojson does not
// either: it writes ids in base64.
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
	Status     struct {
		Code int `json:"code,omitempty"` // 2 is error
	} `json:"status"`
}

type otlpAttr struct {
	Key   string         `json:"key"`
	Value map[string]any `json:"value"`
}

type otlpLink struct {
	TraceID string `json:"traceId"`
	SpanID  string `json:"spanId"`
}

const (
	otlpInternal = 1 // kinds of spans
	otlpServer   = 2
	otlpBatch    = 500 // spans of one line
)

// otlpWriter turns pairs of records into spans: a request and its response are the span of a
// call, a push and its pop the span of a branch. The parent is the host's span if the host sent
// one, else the span of the branch, so that a branch is one tree.
type otlpWriter struct {
	w     *bufio.Writer
	open  map[string]*trace.Record // requests by id, pushes by context
	batch []otlpSpan
}

func writeOTLP(w io.Writer, records iter.Seq[*trace.Record]) error {
	o := &otlpWriter{w: bufio.NewWriter(w), open: map[string]*trace.Record{}}
	var order []string
	for r := range records {
		branch := "branch:" + r.Context
		switch {
		case strings.HasPrefix(r.Kind, "mcp/request"):
			o.open[r.ID] = r
			order = append(order, r.ID)
		case r.Kind == trace.KindPush:
			o.open[branch] = r
			order = append(order, branch)
		case r.Kind == trace.KindPop:
			o.end(branch, r)
		case strings.HasPrefix(r.Kind, "mcp/response"):
			for _, id := range r.CorrelationID {
				o.end(id, r)
			}
		}
	}
	for _, key := range order { // the selection has no end of them
		if start := o.open[key]; start != nil {
			o.add(key, start, start)
		}
	}
	o.flush()
	return o.w.Flush()
}

func (o *otlpWriter) end(key string, last *trace.Record) {
	if start := o.open[key]; start != nil {
		delete(o.open, key)
		o.add(key, start, last)
	}
}

func (o *otlpWriter) add(key string, start, last *trace.Record) {
	s := otlpSpan{SpanID: spanID(key), Kind: otlpServer, Start: nanos(start), End: nanos(last)}
	s.TraceID, s.ParentID = spanContext(start)
	in := contextpath.Path(start.Context)
	a, first := *last.AuditOrEmpty(), start.AuditOrEmpty() // the last record may lack names
	a.Session, a.Principal, a.Server = cmp.Or(a.Session, first.Session), cmp.Or(a.Principal, first.Principal), cmp.Or(a.Server, first.Server)
	a.Tool, a.Revision, a.Tokens = cmp.Or(a.Tool, first.Tool), cmp.Or(a.Revision, first.Revision), cmp.Or(a.Tokens, first.Tokens)
	if strings.HasPrefix(key, "branch:") {
		s.Name, s.Kind = "branch "+in.Leaf(), otlpInternal
		in = in.Parent()
	} else {
		s.Name = strings.TrimSpace(methodOf(start) + " " + a.Tool)
	}
	if branch := trace.BranchOf(string(in)); s.ParentID == "" && branch != "" {
		s.ParentID = spanID("branch:" + branch)
	}
	s.Attributes = otlpAttributes(start, a)
	for _, id := range start.CorrelationID {
		s.Links = append(s.Links, otlpLink{s.TraceID, spanID(id)})
	}
	if a.IsError {
		s.Status.Code = 2
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
		"scopeSpans": []any{map[string]any{"scope": map[string]any{"name": "github.com/foldgate/foldgate"}, "spans": o.batch}},
	}}})
	if err == nil { // strings and numbers always encode
		o.w.Write(append(line, '\n')) // Flush reports the error
	}
	o.batch = o.batch[:0]
}

// spanContext returns the id of the OpenTelemetry trace and of the host's parent
// span, which is "" without a valid traceparent.
func spanContext(r *trace.Record) (traceID, parent string) {
	a := r.AuditOrEmpty()
	if tp, ok := trace.ParseTraceparent(a.Traceparent); ok {
		return fmt.Sprintf("%x", tp.Trace), fmt.Sprintf("%x", tp.Parent)
	}
	return fmt.Sprintf("%x", trace.TraceID(r.ID, a.Principal, a.Session, r.Context)), ""
}

func spanID(key string) string { return fmt.Sprintf("%x", trace.SpanID(key)) }

func nanos(r *trace.Record) string {
	if t := r.Time(); !t.IsZero() {
		return strconv.FormatInt(t.UnixNano(), 10)
	}
	return "0"
}

func methodOf(r *trace.Record) string {
	_, method, _ := strings.Cut(r.Kind, ":")
	return cmp.Or(r.AuditOrEmpty().Method, method)
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

// otlpAttributes uses the names of the semantic conventions for MCP, and names
// that begin with foldgate for the rest.
func otlpAttributes(r *trace.Record, a trace.Audit) []otlpAttr {
	out := []otlpAttr{attr("foldgate.envelope.id", r.ID)}
	text := func(key, value string) {
		if value != "" {
			out = append(out, attr(key, value))
		}
	}
	if strings.HasPrefix(r.Kind, "mcp/request") {
		text("mcp.method.name", methodOf(r))
	}
	if a.Tool != "" {
		text("gen_ai.operation.name", "execute_tool")
		text("gen_ai.tool.name", a.Tool)
	}
	text("foldgate.instance", r.Instance)
	text("mcp.session.id", a.Session)
	text("mcp.protocol.version", a.Revision)
	text("foldgate.context", r.Context)
	text("foldgate.server", a.Server)
	text("foldgate.principal", a.Principal)
	if t := a.Tokens; t != nil {
		out = append(out, attr("foldgate.tokens.in", t.In), attr("foldgate.tokens.delivered", t.Delivered))
		text("foldgate.tokens.counter", t.Counter)
	}
	if a.Decision != nil && a.Decision.Result == trace.Blocked {
		text("foldgate.blocked", a.Decision.Reason)
	}
	if a.IsError {
		text("error.type", "tool_error")
	}
	return out
}
