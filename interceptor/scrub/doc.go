// Package scrub finds and removes secrets in text and JSON.
//
// The rules are the default rules of gitleaks, foldgate's own rules for what those miss, and a
// file of the user's in gitleaks' format. The findings of gitleaks' rules are those of gitleaks'
// detector on the same text, to the byte, with one exception: where gitleaks excepts a finding in
// the last line because of another line, it is found. A comment such as gitleaks:allow in the
// text has no effect.
//
// Every secret is replaced by [REDACTED:rule], and nothing else changes. An error means that the
// text was not examined to its end: withhold it.
//
// A text is examined as it is (find.go). Names and values that stand apart (pairs.go), as in tables
// (tables.go) and statements of SQL (sql.go), or behind the prefix that lines have (prefix.go), are put
// together and examined again. Where the text contains base64 or hexadecimal (runs.go), packed text in it
// (unpack.go), or escapes (escapes.go), what these stand for is put in their place, and that is examined
// again (decode.go). redact.go replaces what was found.
//
// Of JSON each string is a text (json.go). Strings that belong together are examined together, too
// (related.go). rewrite.go puts the redacted strings in their places. Package regexset finds the matches
// of the rules (rules.go).
package scrub
