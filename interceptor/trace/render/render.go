// Package render prints records of the journal, and reports about them, in the
// formats of `foldgate trace`.
package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Formats of [Write].
const (
	Table = "table" // one line a record, for reading
	Tree  = "tree"  // grouped by context, for reading
	JSONL = "jsonl" // the records as in the journal
	MEW   = "mew"   // envelopes of mew/v0.4, without foldgate's own fields
	OTLP  = "otlp"  // OpenTelemetry spans, as OTLP JSON lines
	A2A   = "a2a"   // the steps of workflows as tasks of the A2A protocol 1.0
	// Memories is what branches taught, a JSON object a line.
	Memories = "memories"
)

// Formats returns the formats that [Write] takes.
func Formats() []string { return []string{Table, Tree, JSONL, MEW, OTLP, A2A, Memories} }

// Streams reports whether a format writes each record when it comes. The others
// need all records first.
func Streams(format string) bool { return format == Table || format == JSONL || format == MEW }

// CheckFormat returns a [*query.UsageError] unless [Write] takes the format.
func CheckFormat(format string) error {
	if !slices.Contains(Formats(), format) {
		return query.Usagef("format", "%.40q is not a format; use %s", format, strings.Join(Formats(), ", "))
	}
	return nil
}

// Write prints records to w, until one comes with an error. It makes one call of w.Write for each
// record if the format streams, so w should buffer unless a reader waits for the records.
func Write(w io.Writer, format string, records iter.Seq2[*trace.Record, error]) (err error) {
	if err := CheckFormat(format); err != nil {
		return err
	}
	var failed error
	plain := func(yield func(*trace.Record) bool) {
		for r, err := range records {
			if failed = err; err != nil || !yield(r) {
				return
			}
		}
	}
	switch format {
	case Tree:
		err = writeTree(w, plain)
	case OTLP:
		err = writeOTLP(w, plain)
	case A2A:
		err = writeA2A(w, plain)
	case Memories:
		err = writeMemories(w, plain)
	default:
		line, header := map[string]func(*trace.Record) (string, error){Table: tableRow, JSONL: jsonLine, MEW: mewLine}[format], ""
		if format == Table {
			header = tableHeader // before the first record, or alone
		}
		for r := range plain {
			text, err := line(r)
			if header != "" && r.Instance != "" {
				header = fmt.Sprintf(instanceFormat, "INSTANCE") + header
			}
			if err == nil {
				_, err = io.WriteString(w, header+text)
			}
			if header = ""; err != nil {
				return err
			}
		}
		if failed == nil {
			_, err = io.WriteString(w, header)
		}
	}
	return cmp.Or(failed, err)
}

func jsonLine(r *trace.Record) (string, error) {
	line, err := r.AppendLine(nil)
	return string(line), err
}

// mewEnvelope is an envelope of mew/v0.4, spec/protocol/SPEC.md section 3.
type mewEnvelope struct {
	Protocol      string          `json:"protocol"`
	ID            string          `json:"id"`
	TS            string          `json:"ts"`
	From          string          `json:"from"`
	To            []string        `json:"to,omitempty"`
	Kind          string          `json:"kind"`
	CorrelationID trace.IDs       `json:"correlation_id,omitempty"`
	Context       string          `json:"context,omitempty"`
	Payload       json.RawMessage `json:"payload"`
}

func mewLine(r *trace.Record) (string, error) {
	kind, method, _ := strings.Cut(r.Kind, ":")
	switch kind {
	case trace.KindReflection:
		kind = "reasoning/thought"
	case trace.KindConclusion:
		kind = "reasoning/conclusion"
	}
	payload := r.Payload
	if len(payload) == 0 {
		payload = json.RawMessage("{}")
		if kind == "mcp/request" { // mew has the method in the payload, and requires it
			payload = rawjson.Marshal(map[string]string{"method": method})
		}
	}
	line := rawjson.Marshal(mewEnvelope{"mew/v0.4", r.ID, r.TS, r.From, r.To, kind, r.CorrelationID, r.Context, payload})
	return string(line) + "\n", nil
}
