package scrub

import (
	"regexp"
	"strings"
)

// ownIDs matches the ids that foldgate itself gives to branches, sessions,
// contexts and envelopes. An agent has to read them, so they are never
// redacted, although some of them look like keys.
var ownIDs = regexp.MustCompile(`\b(?:(?:br|ses|env)_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ctx_[0-9]{10,14}_[a-z0-9]{6,26})\b`)

// checksums matches the sums of lock files: those of Go, and those of package
// managers that write subresource integrity. gitleaks leaves such files out by
// their path; a text has none, so the shape must do.
var checksums = regexp.MustCompile(`^(?:h1:[A-Za-z0-9+/]{43}=|sha(?:1|256|384|512)-[A-Za-z0-9+/]{27,86}={0,2})$`)

// carve returns what is left of s in text without foldgate's ids.
func carve(text string, s span) []span {
	if !strings.Contains(text[s.start:s.end], "_") {
		return []span{s}
	}
	// An id may reach over the ends of s.
	const reach = 64
	from, to := max(0, s.start-reach), min(len(text), s.end+reach)
	var left []span
	at := s.start
	for _, id := range ownIDs.FindAllStringIndex(text[from:to], -1) {
		if lo, hi := id[0]+from, id[1]+from; hi > at && lo < s.end {
			if lo > at {
				left = append(left, span{at, lo})
			}
			at = hi
		}
	}
	if at < s.end {
		left = append(left, span{at, s.end})
	}
	return left
}

// isChecksum reports whether the secret of h is a lock file's checksum that a
// generic rule took for a key.
func isChecksum(text string, h *hit) bool {
	if !h.rule.generic {
		return false
	}
	start := h.secret.start
	for _, prefix := range []string{"h1:", "sha1-", "sha256-", "sha384-", "sha512-"} {
		if strings.HasSuffix(text[:start], prefix) {
			start -= len(prefix)
			break
		}
	}
	end := h.secret.end
	for end < len(text) && text[end] == '=' && end < h.secret.end+2 {
		end++
	}
	return end-start < 128 && checksums.MatchString(text[start:end])
}
