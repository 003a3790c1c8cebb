package trace

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type correlationVector struct {
	In         json.RawMessage
	Want       IDs
	Mode       Mode
	Deprecated []string
	Err        string
	EqualTo    IDs `json:"equal_to"`
}

type vectors struct {
	Correlation []correlationVector
	Fields      []correlationVector `json:"correlation_fields"`
}

func loadVectors(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("../../folding/contextpath/testdata/envelope.json")
	if err != nil {
		t.Fatal(err)
	}
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
		got, deprecated, err := DecodeIDs(in, c.Mode)
		check(t, c, got, deprecated, err)
		if c.EqualTo != nil && !cmp.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(c.EqualTo))) {
			t.Errorf("%s: not equal to %v", c.In, c.EqualTo)
		}
	}
	for _, c := range v.Fields {
		got, deprecated, err := DecodeCorrelation(c.In, Transition)
		check(t, c, got, deprecated, err)
	}
}

func check(t *testing.T, c correlationVector, got IDs, deprecated []string, err error) {
	t.Helper()
	var ce *CorrelationError
	if c.Err != "" {
		if !errors.As(err, &ce) || ce.Code != c.Err {
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
	}{{many, CodeCorrelationTooMany}, {many[:64], ""}, {[]string{long}, CodeCorrelationTooLong}, {long, CodeCorrelationTooLong}} {
		in, err := json.Marshal(c.in)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = DecodeIDs(in, Transition)
		var ce *CorrelationError
		if c.code == "" && err != nil || c.code != "" && (!errors.As(err, &ce) || ce.Code != c.code) {
			t.Errorf("DecodeIDs(%.40s) = %v, want code %q", in, err, c.code)
		}
	}
	if _, _, err := DecodeCorrelation([]byte(`{"correlationId":["a"],"correlation_id":"b"}`), Strict); err == nil {
		t.Error("strict mode takes a string under the later name")
	}
}

// FuzzDecodeIDs: what is accepted is a set within the limits, and reading what
// is written gives the same.
func FuzzDecodeIDs(f *testing.F) {
	for _, s := range []string{`["a","b"]`, `"a"`, `null`, `[]`, `[""]`, `["a",1]`, `["\u0061","a"]`, ``, `[`, `["\ud800"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ids, _, err := DecodeIDs(data, Transition)
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
		if err := json.Unmarshal(out, &back); err != nil && !errors.As(err, new(*CorrelationError)) {
			t.Fatal(err)
		}
	})
}
