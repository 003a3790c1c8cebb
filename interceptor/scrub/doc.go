// Package scrub finds and removes secrets in text and JSON.
//
//	s, err := scrub.New(scrub.Options{Timeout: 2 * time.Second}) // once, at start-up
//	clean, found, err := s.JSON(ctx, result)
//	if err != nil { /* withhold the result */ }
//
// What is a secret is decided by the default rules of gitleaks, by foldgate's
// own rules for what those miss, and by a file of the user's in gitleaks'
// format. The findings of gitleaks' rules are those that gitleaks' detector
// has on the same text, to the byte; a last line is also taken by itself, where
// gitleaks excepts it for something in another line. A comment such as
// gitleaks:allow inside the text has no effect.
//
// Every secret is replaced by [REDACTED:rule], and nothing else changes. Any
// error means that the text was not examined to its end: withhold it.
package scrub
