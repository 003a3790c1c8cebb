package scrub

import "regexp"

// ownIDs matches the ids that foldgate itself gives to branches, sessions,
// contexts and envelopes. An agent has to read them, so they are never
// redacted, although some of them look like keys.
var ownIDs = regexp.MustCompile(`\b(?:(?:br|ses|env)_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ctx_[0-9]{10,14}_[a-z0-9]{6,26})\b`)

// carve returns what is left of s in text without foldgate's ids.
func carve(text string, s span) []span {
	// An id may reach over the ends of s.
	const reach = 64
	from, to := max(0, s.start-reach), min(len(text), s.end+reach)
	ids := ownIDs.FindAllStringIndex(text[from:to], -1)
	if ids == nil {
		return []span{s}
	}
	var left []span
	at := s.start
	for _, id := range ids {
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
