package preview

import (
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

// jqReadsCSV reports whether jq can read a table that begins with line from. The lines around it must not have the
// delimiter.
func (f *findings) jqReadsCSV(t *delimitedTable, from int) bool {
	if !t.csv || len(f.text) > extract.MaxConvert || !strings.ContainsRune(",\t;|", t.comma) {
		return false
	}
	around := slices.Concat(f.lines[:from], f.lines[from+t.to:])
	others := count(around, func(l string) bool { return l != "" })
	return others == 0 || len(f.text) <= extract.MaxAmong && others <= extract.MaxAround &&
		strings.IndexAny(f.lines[from], ",;\t|") == strings.IndexRune(f.lines[from], t.comma) && !strings.ContainsRune(strings.Join(around, ""), t.comma)
}
