package preview

import (
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

// jqReadsCSV reports whether all rows of lines[from:to] have the same number of fields by the rules of CSV. The
// lines around them must not have the delimiter.
func (f *findings) jqReadsCSV(from, to int, comma rune) bool {
	if len(f.text) > extract.MaxConvert || !strings.ContainsRune(",\t;|", comma) {
		return false
	}
	around := slices.Concat(f.lines[:from], f.lines[to:])
	if slices.ContainsFunc(around, func(l string) bool { return strings.TrimSpace(l) != "" }) {
		other := 0
		for _, l := range around {
			if strings.ContainsRune(l, comma) {
				return false
			}
			if l != "" {
				other++
			}
		}
		if len(f.text) > extract.MaxAmong || other > extract.MaxAround || strings.IndexAny(f.lines[from], ",;\t|") != strings.IndexRune(f.lines[from], comma) {
			return false
		}
	}
	r := csv.NewReader(strings.NewReader(strings.Join(f.lines[from:to], "\n")))
	r.Comma, r.ReuseRecord = comma, true
	for {
		if _, err := r.Read(); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}
