package budget

import "unicode/utf8"

// The functions here cut a text into the pieces that an encoding merges
// separately. They do what a backtracking matcher does with the published
// pattern, in one pass: each returns the end of the piece that starts at i,
// for i < len(b) at the start of a character, in a text of valid UTF-8.

// nextO200k cuts by the pattern of o200k_base:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	\p{N}{1,3}
//	 ?[^\s\p{L}\p{N}]+[\r\n/]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func nextO200k(b []byte, i int) int {
	set, w := classAt(b, i)
	if set&(prefixes|letters) != 0 {
		if end := wordO200k(b, i, set, w); end > i {
			return contraction(b, end)
		}
	}
	switch {
	case set&numbers != 0:
		return digits(b, i+w)
	case set&symbols != 0:
		return lineEndsSlash(b, skip(b, i+w, symbols))
	case b[i] == ' ':
		if next, w := classAt(b, i+1); next&symbols != 0 {
			return lineEndsSlash(b, skip(b, i+1+w, symbols))
		}
	}
	return blanks(b, i)
}

// wordO200k matches the first two lines of the pattern at the character of class
// set and width w at i, without the contraction. It returns i if they do not match.
func wordO200k(b []byte, i int, set uint, w int) int {
	start := i
	if set&prefixes != 0 {
		start += w
	}
	// The capitals, and the end of the last of them that could also be a small letter.
	end, last := start, -1
	for {
		s, w := classAt(b, end)
		if s&capitals == 0 {
			if s&smalls != 0 {
				return skip(b, end+w, smalls)
			}
			break
		}
		end += w
		if s&caseless != 0 {
			end = skip(b, end, caseless)
			last = end
		}
	}
	switch {
	case last > 0:
		// Small letters are asked for and none follows: the last character
		// that can be one ends the word.
		return last
	case set == 1<<classMark:
		// With the mark as prefix there is no small letter, but the mark itself is one.
		return start
	case end > start:
		return end
	}
	return i
}

// nextCL100k cuts by the pattern of cl100k_base:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	[^\r\n\p{L}\p{N}]?\p{L}+
//	\p{N}{1,3}
//	 ?[^\s\p{L}\p{N}]+[\r\n]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func nextCL100k(b []byte, i int) int {
	if end := contraction(b, i); end > i {
		return end
	}
	set, w := classAt(b, i)
	switch {
	case set&letters != 0:
		return skip(b, i+w, letters)
	case set&prefixes != 0:
		if next, v := classAt(b, i+w); next&letters != 0 {
			return skip(b, i+w+v, letters)
		}
	}
	switch {
	case set&numbers != 0:
		return digits(b, i+w)
	case set&symbols != 0:
		return lineEnds(b, skip(b, i+w, symbols))
	case b[i] == ' ':
		if next, w := classAt(b, i+1); next&symbols != 0 {
			return lineEnds(b, skip(b, i+1+w, symbols))
		}
	}
	return blanks(b, i)
}

// nextGPT2 cuts by the pattern of p50k_base and r50k_base:
//
//	's|'t|'re|'ve|'m|'ll|'d
//	 ?\p{L}+
//	 ?\p{N}+
//	 ?[^\s\p{L}\p{N}]+
//	\s+(?!\S)
//	\s+
func nextGPT2(b []byte, i int) int {
	if end := contraction(b, i); end > i && b[i+1] >= 'a' && b[end-1] >= 'a' {
		return end
	}
	start := i
	if b[i] == ' ' {
		start++
	}
	set, w := classAt(b, start)
	for _, run := range [...]uint{letters, numbers, symbols} {
		if set&run != 0 {
			return skip(b, start+w, run)
		}
	}
	end := skip(b, i, spaces)
	return lessLast(b, i, end)
}

// contraction returns the end of an English contraction at i ("'s", "'LL"), or i.
func contraction(b []byte, i int) int {
	if i+1 >= len(b) || b[i] != '\'' {
		return i
	}
	switch b[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if i+2 < len(b) && b[i+2]|0x20 == 'e' {
			return i + 3
		}
	case 'l':
		if i+2 < len(b) && b[i+2]|0x20 == 'l' {
			return i + 3
		}
	}
	return i
}

// digits returns the end of up to two more numbers at i.
func digits(b []byte, i int) int {
	for range 2 {
		set, w := classAt(b, i)
		if set&numbers == 0 {
			break
		}
		i += w
	}
	return i
}

// lineEnds returns the end of the run of \r and \n at i.
func lineEnds(b []byte, i int) int {
	for i < len(b) && (b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// lineEndsSlash returns the end of the run of \r, \n and / at i.
func lineEndsSlash(b []byte, i int) int {
	for i < len(b) && (b[i] == '\n' || b[i] == '\r' || b[i] == '/') {
		i++
	}
	return i
}

// blanks matches \s*[\r\n]+|\s+(?!\S)|\s+ at i, where there is white space.
func blanks(b []byte, i int) int {
	end, newline := i, -1
	for {
		set, w := classAt(b, end)
		if set&spaces == 0 {
			break
		}
		end += w
		if set == 1<<classNewline {
			newline = end
		}
	}
	if newline > 0 {
		return newline
	}
	return lessLast(b, i, end)
}

// lessLast matches \s+(?!\S)|\s+ for white space from i to end: its last
// character is left to what follows, unless nothing does or it is the only one.
func lessLast(b []byte, i, end int) int {
	if end == len(b) {
		return end
	}
	_, w := utf8.DecodeLastRune(b[i:end])
	if end-w > i {
		return end - w
	}
	return end
}
