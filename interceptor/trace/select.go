package trace

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// rows returns the rows of an index that may match f, in order: all that do,
// and others. The record itself decides.
func (f *Filter) rows(x *index) ([]uint32, error) {
	if x.Rows == 0 ||
		!f.Since.IsZero() && x.MaxTime < f.Since.UnixMicro() ||
		!f.Until.IsZero() && x.MinTime >= f.Until.UnixMicro() {
		return nil, nil
	}
	switch rpc, isRPC := strings.CutPrefix(f.Correlates, "rpc:"); {
	case f.ID != "":
		return x.lookup(tableIDs, f.ID)
	case isRPC:
		return x.lookupRPC(rpc)
	case f.Correlates != "":
		return x.lookup(tableCorrelations, f.Correlates)
	}
	keep := make([]bool, x.Rows)
	for i := range keep {
		keep[i] = true
	}
	for col, match := range f.columns() {
		if match == nil {
			continue
		}
		if none, err := x.narrow(keep, col, match); err != nil || none {
			return nil, err
		}
	}
	if err := f.narrowFlags(x, keep); err != nil {
		return nil, err
	}
	if err := f.narrowTimes(x, keep); err != nil {
		return nil, err
	}
	var rows []uint32
	for i, k := range keep {
		if k {
			rows = append(rows, uint32(i)) // #nosec G115: i < Rows
		}
	}
	return rows, nil
}

// lookupRPC finds an id as it is asked for: by what a string says, or as the JSON
// value that stands in the message. The index has what strings say.
func (x *index) lookupRPC(id string) ([]uint32, error) {
	rows, err := x.lookup(tableRPC, id)
	if err != nil || rawjson.KindOf([]byte(id)) != rawjson.String {
		return rows, err
	}
	more, err := x.lookup(tableRPC, rawjson.Unquote([]byte(id)))
	rows = append(rows, more...)
	slices.Sort(rows)
	return slices.Compact(rows), err
}

// columns returns the conditions on the text columns; nil is no condition.
func (f *Filter) columns() (match [numCols]func(string) bool) {
	if f.Main || f.Roots || f.Depth > 0 || f.Type != "" || f.Conclusions || f.Context != "" {
		match[colContext] = f.matchContext
	}
	match[colKind] = f.matchKind
	for col, pattern := range map[int]string{colSession: f.Session, colPrincipal: f.Principal, colFrom: f.From} {
		if pattern != "" {
			match[col] = func(s string) bool { return glob(pattern, s) }
		}
	}
	if len(f.Servers) > 0 {
		match[colServer] = func(s string) bool { return matchAny(f.Servers, s) }
	}
	if len(f.Tools) > 0 {
		match[colTool] = func(s string) bool { return matchAny(f.Tools, s) }
	}
	if f.To != "" {
		match[colTo] = func(s string) bool {
			return slices.ContainsFunc(strings.Split(s, "\x00"), func(to string) bool { return glob(f.To, to) })
		}
	}
	return match
}

// narrow applies a condition on a text column: once to each distinct value,
// and only where they differ in it to each row.
func (x *index) narrow(keep []bool, col int, match func(string) bool) (none bool, err error) {
	values, err := x.dict(col)
	if err != nil {
		return false, err
	}
	allowed, n := make([]bool, len(values)), 0
	for i, v := range values {
		if match(v) {
			allowed[i] = true
			n++
		}
	}
	if n == 0 || n == len(values) {
		return n == 0, nil
	}
	b, err := x.section(colName(col))
	if err != nil {
		return false, err
	}
	for i := range keep {
		if v := binary.LittleEndian.Uint32(b[4*i:]); int(v) < len(allowed) {
			keep[i] = keep[i] && allowed[v]
		}
	}
	return false, nil
}

func (f *Filter) narrowFlags(x *index, keep []bool) error {
	want := f.wantFlags()
	if want == 0 {
		return nil
	}
	b, err := x.section("flags")
	if err != nil {
		return err
	}
	for i := range keep {
		keep[i] = keep[i] && binary.LittleEndian.Uint16(b[2*i:])&want == want
	}
	return nil
}

func (f *Filter) narrowTimes(x *index, keep []bool) error {
	since, until := int64(x.MinTime), x.MaxTime
	if !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if !f.Until.IsZero() {
		until = f.Until.UnixMicro() // exclusive; the record decides
	}
	if since <= x.MinTime && until >= x.MaxTime {
		return nil
	}
	b, err := x.section("times")
	if err != nil {
		return err
	}
	for i := range keep {
		ts := int64(binary.LittleEndian.Uint64(b[8*i:])) // #nosec G115: bits are kept
		keep[i] = keep[i] && ts >= since && ts <= until
	}
	return nil
}
