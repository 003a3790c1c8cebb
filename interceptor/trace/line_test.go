package trace

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

// lineOf returns the line of a record that continues another, and its hash.
func lineOf(r *Record, seq uint64, prev string) (line []byte, hash string, err error) {
	r.Seq, r.Prev, r.Hash = seq, prev, genesis
	if r.Digest = ""; len(r.Payload) > 0 {
		r.Salt = strings.Repeat("00", saltBytes)
		_, sum := appendPayload(nil, [saltBytes]byte{}, r.Payload)
		r.Digest = hashPrefix + hex.EncodeToString(sum[:])
	}
	if line, err = r.AppendLine(nil); err != nil {
		return nil, "", err
	}
	p := proofOf(bytes.TrimSuffix(line, []byte("\n")))
	r.Hash = p.actual
	line, err = r.AppendLine(nil)
	return line, r.Hash, err
}

// appendAuditMember writes the audit as encoding/json does, for every member alone, for all of them
// together, and for values that need care.
func TestAppendTail(t *testing.T) {
	whole := Audit{
		Session: "ses_1", Principal: "a\"b\\c", Team: "data", Server: "<files>", Tool: "t\u2028\x01", ForTool: "t", Via: "call_tool", Method: "tools/call", Revision: "2025-11-25", Source: "argument",
		Thread:   "t1",
		Decision: &Decision{Result: Allowed, Reason: "a<b"}, Tokens: &Tokens{"o200k_base", 1, 2, 3, 4, 5, 6, new(7), true}, Args: new(0),
		Scrub: []Finding{{Rule: "r", Field: "f", Count: 2}}, Fold: &Fold{Handle: "res_1", Saved: 7}, Read: &Read{"res_1", "files", "read_file", "br_1", []Tool{{"db", "query"}}}, Model: &Model{"m", 1, 2, 3}, Injection: &Injection{Action: "flag", Found: 2}, Traceparent: "00-1-2-01",
		Workflow: json.RawMessage(`{ "context_id" : "<1>" }`), MS: 0.125, Bytes: 1 << 40, LeftOut: 9,
		IsError: true, Late: true, Ambiguous: true, Truncated: true, OverBudget: true, Lost: true, Deprecated: []string{"d"},
	}
	cases := []Audit{{}, whole, {MS: 1e-7}, {MS: 1e21}, {MS: 12345.678}, {MS: -1}, {Tokens: &Tokens{}}, {Scrub: []Finding{}}, {Bytes: -1}, {Workflow: json.RawMessage(`null`)}}
	v := reflect.ValueOf(whole)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the case with every member lacks %s", v.Type().Field(i).Name)
		}
		var one Audit
		reflect.ValueOf(&one).Elem().Field(i).Set(v.Field(i))
		cases = append(cases, one)
	}
	for _, a := range cases {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(a); err != nil {
			t.Fatal(err)
		}
		member := `,"audit":` + strings.TrimSpace(want.String())
		if member == `,"audit":{}` {
			member = "" // an empty one is left out
		}
		got, err := appendAuditMember([]byte("x"), &Record{Audit: &a})
		if err != nil || string(got) != "x"+member {
			t.Errorf("appendAuditMember(%+v) = %s, %v, want x%s", a, got, err, member)
		}
	}
	for _, a := range []Audit{{MS: math.NaN()}, {MS: math.Inf(1)}, {Workflow: json.RawMessage(`{`)}} {
		if got, err := appendAuditMember(nil, &Record{Audit: &a}); err == nil {
			t.Errorf("appendAuditMember(%+v) = %s, want an error", a, got)
		}
	}
}
