package trace

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/internal/rawjson"
)

type correlationVector struct {
	In         json.RawMessage
	Want       IDs
	Mode       string
	Deprecated []string
	Err        string
	EqualTo    IDs `json:"equal_to"`
}

// errorTexts are the texts of the errors by their codes in the vectors.
var errorTexts = map[string]string{
	"correlation_type":            "send an array of strings",
	"correlation_empty_element":   "is empty",
	"correlation_string_rejected": "instead of a string",
	"correlation_too_many":        "more than 64 ids",
	"correlation_too_long":        "at most 255 are allowed",
}

// isError reports whether err is the error with a code.
func isError(err error, code string) bool {
	text, ok := errorTexts[code]
	return ok && err != nil && strings.Contains(err.Error(), text)
}

type vectors struct {
	Correlation []correlationVector
	Fields      []correlationVector `json:"correlation_fields"`
}

func loadVectors(t *testing.T) (v vectors) {
	t.Helper()
	data := read(t, "../../folding/contextpath/testdata/envelope.json")
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Correlation) == 0 || len(v.Fields) == 0 {
		t.Fatal("vectors are empty")
	}
	return v
}

func TestVectorsCorrelation(t *testing.T) {
	v := loadVectors(t)
	for _, c := range v.Correlation {
		in := c.In
		if string(in) == `"__absent__"` {
			in = nil
		}
		got, deprecated, err := decodeIDs(in, c.Mode == "strict")
		check(t, c, got, deprecated, err)
		if c.EqualTo != nil && !cmp.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(c.EqualTo))) {
			t.Errorf("%s: not equal to %v", c.In, c.EqualTo)
		}
	}
	for _, c := range v.Fields {
		camel, _ := rawjson.Get(c.In, "correlationId")
		snake, _ := rawjson.Get(c.In, "correlation_id")
		got, deprecated, err := DecodeCorrelation(camel, snake, false)
		check(t, c, got, deprecated, err)
	}
}

func check(t *testing.T, c correlationVector, got IDs, deprecated []string, err error) {
	t.Helper()
	if c.Err != "" {
		if !isError(err, c.Err) {
			t.Errorf("%s: error %v, want %s", c.In, err, c.Err)
		}
		return
	}
	if err != nil {
		t.Errorf("%s: %v", c.In, err)
	}
	if d := cmp.Diff(c.Want, got); d != "" {
		t.Errorf("%s: %s", c.In, d)
	}
	if d := cmp.Diff(c.Deprecated, deprecated); d != "" {
		t.Errorf("%s deprecated: %s", c.In, d)
	}
}

func TestCorrelationLimits(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = string(rune('A' + i))
	}
	long := string(make([]byte, 256))
	for _, c := range []struct {
		in   any
		code string
	}{{many, "correlation_too_many"}, {many[:64], ""}, {[]string{long}, "correlation_too_long"}, {long, "correlation_too_long"}} {
		in, err := json.Marshal(c.in)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = decodeIDs(in, false)
		if c.code == "" && err != nil || c.code != "" && !isError(err, c.code) {
			t.Errorf("decodeIDs(%.40s) = %v, want code %q", in, err, c.code)
		}
	}
	for _, in := range [][2]string{{`["a"]`, `"b"`}, {`"b"`, `["a"]`}, {`"b"`, ``}} {
		_, deprecated, err := DecodeCorrelation([]byte(in[0]), []byte(in[1]), true)
		if err == nil || !slices.Contains(deprecated, "correlation_string") {
			t.Errorf("strict: DecodeCorrelation(%s) = %q, %v, want it refused and the form named", in, deprecated, err)
		}
	}
}

// FuzzDecodeIDs: a list that decodeIDs accepts is a set within the limits, and reading what is
// written gives the same.
func FuzzDecodeIDs(f *testing.F) {
	for _, s := range []string{`["a","b"]`, `"a"`, `null`, `[]`, `[""]`, `["a",1]`, `["\u0061","a"]`, ``, `[`, `["\ud800"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ids, _, err := decodeIDs(data, false)
		if err != nil {
			if ids != nil {
				t.Fatalf("ids %v with error %v", ids, err)
			}
			return
		}
		if len(ids) > MaxIDs {
			t.Fatalf("%d ids", len(ids))
		}
		seen := map[string]bool{}
		for _, id := range ids {
			if id == "" || len(id) > MaxIDBytes || seen[id] {
				t.Fatalf("ids %q from %q", ids, data)
			}
			seen[id] = true
		}
		if !json.Valid(data) {
			return
		}
		out, err := json.Marshal(ids)
		if err != nil {
			t.Fatal(err)
		}
		var back IDs
		if err := json.Unmarshal(out, &back); err != nil || !slices.Equal(back, ids) {
			t.Fatalf("%q, %v after reading %s", back, err, out)
		}
	})
}

// A record may have more ids than a host may send: its own, and those of foldgate.
func TestManyCorrelations(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	r := &Record{Kind: "k"}
	for i := range 2 * MaxIDs {
		r.CorrelationID = append(r.CorrelationID, fmt.Sprint("id", i))
	}
	add(t, j, r)
	closeJournal(t, j)
	if report := verify(t, dir); !report.OK() {
		t.Error(report.Faults)
	}
	if rs := query(t, dir, pick{Kinds: []string{"k"}}); len(rs) != 1 || len(rs[0].CorrelationID) != 2*MaxIDs {
		t.Errorf("records = %v, want one with %d ids", rs, 2*MaxIDs)
	}
}
