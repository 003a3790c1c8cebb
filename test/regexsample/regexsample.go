// Package regexsample makes strings that regular expressions match, for tests.
package regexsample

import (
	"math/rand/v2"
	"regexp/syntax"
	"strings"
	"unicode"
)

// A Sampler makes strings that expressions match, and texts that contain them.
type Sampler struct{ *rand.Rand }

// New returns the Sampler of a seed.
func New(seed uint64) Sampler { return Sampler{rand.New(rand.NewPCG(seed, seed))} }

// Of returns a string that x matches, except for its assertions.
func (s Sampler) Of(x *syntax.Regexp) string {
	var b strings.Builder
	s.write(&b, x)
	return b.String()
}

func (s Sampler) write(b *strings.Builder, x *syntax.Regexp) {
	switch x.Op {
	case syntax.OpLiteral:
		for _, r := range x.Rune {
			if x.Flags&syntax.FoldCase != 0 && s.IntN(3) == 0 {
				r = unicode.SimpleFold(r)
				if r > unicode.MaxASCII && s.IntN(20) > 0 {
					r = unicode.SimpleFold(r)
				}
			}
			b.WriteRune(r)
		}
	case syntax.OpCharClass:
		b.WriteRune(s.member(x.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte(" ax0-\"Q"[s.IntN(7)])
	case syntax.OpCapture:
		s.write(b, x.Sub[0])
	case syntax.OpConcat:
		for _, y := range x.Sub {
			s.write(b, y)
		}
	case syntax.OpAlternate:
		s.write(b, x.Sub[s.IntN(len(x.Sub))])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		lo, hi := x.Min, x.Max
		switch x.Op {
		case syntax.OpStar:
			lo, hi = 0, -1
		case syntax.OpPlus:
			lo, hi = 1, -1
		case syntax.OpQuest:
			lo, hi = 0, 1
		}
		if hi < 0 {
			hi = lo + 20
		}
		n := lo
		if hi > lo && s.IntN(4) > 0 {
			n += s.IntN(hi - lo + 1)
		}
		for range n {
			s.write(b, x.Sub[0])
		}
	}
}

// member returns a rune of a class, nearly always an ASCII one.
func (s Sampler) member(ranges []rune) rune {
	for range 50 {
		i := 2 * s.IntN(len(ranges)/2)
		lo, hi := ranges[i], min(ranges[i+1], ranges[i]+1000)
		r := lo + rune(s.IntN(int(hi-lo)+1))
		if r >= ' ' && r < unicode.MaxASCII || s.IntN(50) == 0 {
			return r
		}
	}
	return ranges[0]
}

// fillers stand between samples. Some are special to engines: line breaks, the
// letters that fold to ASCII, bytes that are no UTF-8.
var fillers = []string{
	" ", "\n", "\n\n", "\r\n", "\t", `"`, "'", "; ", " = ", ": ", "=", "(", "`", "\\n", ",", "\\\"",
	"key", "token = ", "password: ", "api_key=\"", "secret", "AUTH", "\u212aey=", "acce\u017f\u017f: ", "ap\u0130_to\u212aen = '",
	"\u212a", "\u017f", "\u0130", "\xff", "\xe2\x84", "\xe2", "é", "日本", "\u200b", "x", "0", "_", "-",
	"--mount=type=secret,", `import {key} from "x_token"`, "the quick brown fox ", "func main() {\n\treturn nil\n}\n",
	"kind: Secret\ndata:\n", "sourcegraph ", "curl -H ", "-----BEGIN RSA PRIVATE KEY-----\n", "KEY-----", "abcdef0123456789",
	"0123456789abcdef0123456789abcdef01234567", "https://example.com/path?q=1&key=", "h1:", "sha512-", "%20", "%3D", "|", "=>", ":=", "||",
}

// Text returns a text of about size bytes with samples of expressions in it:
// whole, cut, changed, and glued to each other and to the text around them.
func (s Sampler) Text(trees []*syntax.Regexp, size int) string {
	var b strings.Builder
	for b.Len() < size {
		for range s.IntN(4) {
			b.WriteString(fillers[s.IntN(len(fillers))])
		}
		if s.IntN(3) == 0 {
			b.WriteString(strings.Repeat("lorem ipsum dolor ", s.IntN(6)))
			continue
		}
		x := s.Of(trees[s.IntN(len(trees))])
		switch s.IntN(8) {
		case 0:
			x = x[:s.IntN(len(x)+1)]
		case 1:
			x = x[s.IntN(len(x)+1):]
		case 2:
			if i := s.IntN(len(x) + 1); i < len(x) {
				x = x[:i] + fillers[s.IntN(len(fillers))] + x[i+1:]
			}
		case 3:
			x = strings.ToUpper(x)
		}
		b.WriteString(x)
	}
	out := b.String()
	if s.IntN(3) == 0 {
		out += "\n"
	}
	return out
}
