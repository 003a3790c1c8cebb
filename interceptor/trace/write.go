package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Formats of [Write] and [Print].
const (
	FormatTable = "table" // one line a record, for reading
	FormatTree  = "tree"  // grouped by context, for reading
	FormatJSONL = "jsonl" // the records as in the journal
	FormatMEW   = "mew"   // envelopes of mew/v0.4, without what is ours
	FormatOTLP  = "otlp"  // OpenTelemetry spans, as OTLP JSON lines
	FormatA2A   = "a2a"   // the steps of workflows as tasks of the A2A protocol 1.0
)

// Formats lists what [Write] takes.
func Formats() []string {
	return []string{FormatTable, FormatTree, FormatJSONL, FormatMEW, FormatOTLP, FormatA2A}
}

// Write renders records to w. Table, jsonl and mew reach w record by record,
// so that they serve [Follow] too; tree, otlp and a2a need all of them first. An
// unknown format is a [*UsageError].
func Write(w io.Writer, format string, records iter.Seq[*Record]) error {
	return write(w, format, records, true)
}

// write flushes after each record where somebody waits for it.
func write(w io.Writer, format string, records iter.Seq[*Record], each bool) error {
	switch format {
	case FormatTree:
		return writeTree(w, records)
	case FormatOTLP:
		return writeOTLP(w, records)
	case FormatA2A:
		return writeA2A(w, records)
	}
	line, err := lineFormat(format)
	if err != nil {
		return err
	}
	bw := bufio.NewWriter(w)
	if format == FormatTable {
		fmt.Fprintln(bw, tableHeader)
	}
	for r := range records {
		if err := line(bw, r); err != nil {
			return err
		}
		if !each {
			continue
		}
		if err := bw.Flush(); err != nil {
			return err
		}
	}
	return bw.Flush()
}

// Print renders what f selects from the journal in dir.
func Print(w io.Writer, dir string, f Filter, format string) error {
	if err := errors.Join(CheckFormat(format), f.Validate()); err != nil {
		return err // before the first line is out
	}
	var failed error
	err := write(w, format, func(yield func(*Record) bool) {
		failed = Query(dir, f, yield)
	}, false)
	if failed != nil {
		return failed
	}
	return err
}

// CheckFormat returns a [*UsageError] for a format that [Write] does not take.
func CheckFormat(format string) error {
	for _, f := range Formats() {
		if f == format {
			return nil
		}
	}
	return usage("format", "%.40q is not a format; use %s", format, strings.Join(Formats(), ", "))
}

// lineFormat returns the writer of a format that has one line a record.
func lineFormat(format string) (func(io.Writer, *Record) error, error) {
	switch format {
	case FormatTable:
		return writeRow, nil
	case FormatJSONL:
		return writeJSON, nil
	case FormatMEW:
		return writeMEW, nil
	}
	if err := CheckFormat(format); err != nil {
		return nil, err
	}
	return nil, usage("format", "%s needs all records first and cannot follow; use table, jsonl or mew", format)
}

// writeJSON writes the record as it stands in the journal, with the hash that
// it claims.
func writeJSON(w io.Writer, r *Record) error {
	line, err := appendEnvelope(nil, r)
	if err != nil {
		return err
	}
	line, _ = appendChain(line, 0, r.Seq, r.Prev)
	copy(line[len(line)-lineTail+len(hashMember):], r.Hash)
	_, err = w.Write(line)
	return err
}

// mewEnvelope is an envelope of mew/v0.4, spec/protocol/SPEC.md section 3.
type mewEnvelope struct {
	Protocol      string          `json:"protocol"`
	ID            string          `json:"id"`
	TS            string          `json:"ts"`
	From          string          `json:"from"`
	To            []string        `json:"to,omitempty"`
	Kind          string          `json:"kind"`
	CorrelationID IDs             `json:"correlation_id,omitempty"`
	Context       string          `json:"context,omitempty"`
	Payload       json.RawMessage `json:"payload"`
}

func writeMEW(w io.Writer, r *Record) error {
	kind, method, _ := strings.Cut(canonicalKind(r.Kind), ":")
	switch kind {
	case KindReflection:
		kind = "reasoning/thought"
	case KindConclusion:
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
	_, err := w.Write(append(line, '\n'))
	return err
}
