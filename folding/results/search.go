package results

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Hit is a passage of a text that fits a query.
type Hit struct {
	// From and To are the first and last line number of the passage.
	From, To int
	// Lines are its matching lines and their neighbors, each with its number.
	Lines string
}

// Sizes of the passages that are ranked.
const (
	passageLines = 12
	passageBytes = 1200
	hitLine      = 400 // longest line of a hit shown, in bytes
	maxTerms     = 32  // of one query
)

// Search returns the passages of a text that fit a query best, at most limit. It ranks them by
// BM25 over the stems of words. A word is a run of letters and digits; Search ignores the rest of
// the query. Its time and memory are linear in the text.
func Search(ctx context.Context, text, query string, limit int) ([]Hit, error) {
	terms := strings.FieldsFunc(query, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if len(terms) == 0 {
		return nil, folding.Errorf(folding.ErrInvalidInput, "search: %q has no words; to look for signs use grep", folding.Shorten(query, 60))
	}
	terms = terms[:min(len(terms), maxTerms)]
	db, err := sqlitedb.Memory()
	if err != nil {
		return nil, folding.Errorf(folding.ErrStorage, "search: %w", err)
	}
	defer db.Close()
	passages, err := index(ctx, db, text)
	var hits []Hit
	for _, end := range []string{`"`, `"*`} { // if no whole word fits, search for prefixes
		if err != nil || len(hits) > 0 {
			break
		}
		hits, err = rank(ctx, db, passages, `"`+strings.Join(terms, end+` OR "`)+end, limit)
	}
	switch {
	case err == nil:
		return hits, nil
	case ctx.Err() != nil:
		return nil, folding.Errorf(folding.ErrInvalidInput, "search: took too long on this text; use grep or lines")
	}
	return nil, folding.Errorf(folding.ErrStorage, "search: %w", err)
}

// index inserts the passages of a text into a full-text index. It returns the number of the first
// line of each.
func index(ctx context.Context, db *sql.DB, text string) (first []int, err error) {
	err = sqlitedb.Update(ctx, db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE VIRTUAL TABLE passages USING fts5(body, tokenize='porter unicode61 remove_diacritics 2')")
		if err != nil {
			return err
		}
		put, err := tx.PrepareContext(ctx, "INSERT INTO passages (rowid, body) VALUES (?, ?)")
		if err != nil {
			return err
		}
		for line := 1; text != ""; {
			body := passage(text)
			first = append(first, line)
			if _, err := put.ExecContext(ctx, len(first), body); err != nil {
				return err
			}
			line += strings.Count(body, "\n")
			text = text[len(body):]
		}
		return nil
	})
	return first, err
}

// passage returns the first passage of a text: a few lines, or a part of a very long line.
func passage(text string) string {
	end := 0
	for range passageLines {
		rest := text[end:min(len(text), end+2*passageBytes+1)] // of a longer line more does not matter
		next := strings.IndexByte(rest, '\n') + 1
		if next == 0 {
			next = len(rest)
		}
		if end > 0 && end+next > passageBytes {
			break
		}
		if end += next; end == len(text) {
			break
		}
	}
	if end > 2*passageBytes {
		end = passageBytes
		if i := strings.LastIndexAny(text[:end], " ,;}"); i > end/2 {
			end = i + 1
		}
		for end < len(text) && !utf8.RuneStart(text[end]) {
			end++
		}
	}
	return text[:end]
}

// The marks around matching words. A text may contain them: then a hit shows a line too many.
const markOn, markOff = "\x01", "\x02"

// rank returns the passages that fit a query, the best first.
func rank(ctx context.Context, db *sql.DB, first []int, query string, limit int) ([]Hit, error) {
	const match = "SELECT rowid, highlight(passages, 0, ?, ?) FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"
	var hits []Hit
	var row int
	var body string
	for err := range sqlitedb.Rows(ctx, db, []any{&row, &body}, match, markOn, markOff, query, limit) {
		if err != nil {
			return nil, err
		}
		hits = append(hits, snippet(body, first[row-1]))
	}
	return hits, nil
}

// unmarked takes the marks out of a text.
var unmarked = strings.NewReplacer(markOn, "", markOff, "")

// snippet returns the marked lines of a passage and their neighbors.
func snippet(body string, first int) Hit {
	lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	h := Hit{From: first, To: first + len(lines) - 1}
	var out []string
	for i, l := range lines {
		near := strings.Contains(l, markOn) || (i > 0 && strings.Contains(lines[i-1], markOn)) || (i+1 < len(lines) && strings.Contains(lines[i+1], markOn))
		if !near {
			continue
		}
		before, _, _ := strings.Cut(l, markOn)
		at := len(unmarked.Replace(before))
		l = unmarked.Replace(l)
		if len(l) > hitLine {
			l = part(l, max(at-hitLine/3, 0))
		}
		out = append(out, fmt.Sprintf("%d: %s", first+i, l))
	}
	h.Lines = strings.Join(out, "\n")
	return h
}

// part returns about hitLine bytes of l, from about byte from on.
func part(l string, from int) string {
	to := min(from+hitLine, len(l))
	out := strings.ToValidUTF8(l[from:to], "") // without parts of characters at the ends
	if from > 0 {
		out = "…" + out
	}
	if to < len(l) {
		out += "…"
	}
	return out
}
