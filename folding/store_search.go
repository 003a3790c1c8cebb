package folding

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Hit is a passage of a text, lines From to To, with the lines that matter.
type Hit struct {
	From, To int
	// Lines are the matching lines and those beside them, each with its number.
	Lines string
}

// Sizes of the passages that are ranked.
const (
	passageLines = 12
	passageBytes = 1200
	hitLine      = 400 // longest line of a hit shown, in bytes
	maxTerms     = 32  // of one query
)

// SearchText ranks the passages of a text by how well they fit the words of a
// query (BM25 over word stems) and returns the best, at most limit. Words are
// runs of letters and digits; the rest of the query says nothing. It takes
// time and memory linear in the text, and ends with ctx.
func SearchText(ctx context.Context, text, query string, limit int) ([]Hit, error) {
	terms := strings.FieldsFunc(query, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if len(terms) == 0 {
		return nil, fail(ErrInvalidInput, "search: %q has no words; to look for signs use grep", cut(clean(query), 60))
	}
	terms = terms[:min(len(terms), maxTerms)]
	db, err := sqlitedb.Memory()
	if err != nil {
		return nil, failWith(ErrStorage, err, "search: %v", err)
	}
	defer db.Close()
	passages, err := indexText(ctx, db, text)
	if err != nil {
		return nil, searchFault(ctx, err)
	}
	// First whole words, then beginnings of words.
	for _, form := range []string{`"%s"`, `"%s"*`} {
		var quoted []string
		for _, t := range terms {
			quoted = append(quoted, fmt.Sprintf(form, t))
		}
		hits, err := rank(ctx, db, passages, strings.Join(quoted, " OR "), limit)
		if err != nil {
			return nil, searchFault(ctx, err)
		}
		if len(hits) > 0 {
			return hits, nil
		}
	}
	return nil, nil
}

func searchFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fail(ErrInvalidInput, "search: took too long on this text; use grep or lines")
	}
	return failWith(ErrStorage, err, "search: %v", err)
}

// indexText puts the passages of a text into an index and returns their first
// lines, by row.
func indexText(ctx context.Context, db *sql.DB, text string) (first []int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() // does nothing after Commit
	if _, err := tx.ExecContext(ctx, "CREATE VIRTUAL TABLE passages USING fts5(body, tokenize='porter unicode61 remove_diacritics 2')"); err != nil {
		return nil, err
	}
	put, err := tx.PrepareContext(ctx, "INSERT INTO passages (rowid, body) VALUES (?, ?)")
	if err != nil {
		return nil, err
	}
	defer put.Close()
	line := 1
	for text != "" {
		body := passage(text)
		first = append(first, line)
		if _, err := put.ExecContext(ctx, len(first), body); err != nil {
			return nil, err
		}
		line += strings.Count(body, "\n")
		text = text[len(body):]
	}
	return first, tx.Commit()
}

// passage returns the start of a text that is ranked as one: some lines, or a
// part of one that is very long.
func passage(text string) string {
	end := 0
	for range passageLines {
		next := strings.IndexByte(text[end:], '\n') + 1
		if next == 0 {
			next = len(text) - end
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

// Signs around matching words. The text may hold them as well: then a line too
// many is shown.
const markOn, markOff = "\x01", "\x02"

// rank returns the passages that fit a query, best first.
func rank(ctx context.Context, db *sql.DB, first []int, query string, limit int) ([]Hit, error) {
	rows, err := db.QueryContext(ctx, "SELECT rowid, highlight(passages, 0, ?, ?) FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?",
		markOn, markOff, query, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var hits []Hit
	for rows.Next() {
		var row int
		var body string
		if err := rows.Scan(&row, &body); err != nil {
			return nil, err
		}
		hits = append(hits, snippet(body, first[row-1]))
	}
	return hits, rows.Err()
}

// snippet keeps the marked lines of a passage and those beside them.
func snippet(body string, first int) Hit {
	lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	h := Hit{From: first, To: first + len(lines) - 1}
	var out []string
	for i, l := range lines {
		near := strings.Contains(l, markOn) || (i > 0 && strings.Contains(lines[i-1], markOn)) || (i+1 < len(lines) && strings.Contains(lines[i+1], markOn))
		if !near {
			continue
		}
		at := strings.Index(l, markOn)
		l = strings.NewReplacer(markOn, "", markOff, "").Replace(l)
		if len(l) > hitLine {
			l = part(l, max(at-hitLine/3, 0))
		}
		out = append(out, fmt.Sprintf("%d: %s", first+i, l))
	}
	h.Lines = strings.Join(out, "\n")
	return h
}

// part returns hitLine bytes of l from about byte from on.
func part(l string, from int) string {
	for from > 0 && !utf8.RuneStart(l[from]) {
		from--
	}
	to := min(from+hitLine, len(l))
	for to < len(l) && !utf8.RuneStart(l[to]) {
		to++
	}
	out := l[from:to]
	if from > 0 {
		out = "…" + out
	}
	if to < len(l) {
		out += "…"
	}
	return out
}
