package budget

import (
	"encoding/base64"
	"fmt"
	"go/build"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"
)

const vocabularySize = 20_000

// A lexicon draws words of a script. They are the tokens of o200k_base that are
// written in it, drawn by Zipf's law with the lower ranks as the frequent words
// and no more than vocabularySize of them, which is still more variety than
// source text has.
type lexicon struct {
	rng   *rand.Rand
	words map[string][]string
}

var ascii = &unicode.RangeTable{R16: []unicode.Range16{{Lo: 'A', Hi: 'Z', Stride: 1}, {Lo: 'a', Hi: 'z', Stride: 1}}}

var scripts = map[string]*unicode.RangeTable{
	"english": ascii,
	"latin":   unicode.Latin, "han": unicode.Han, "kana": unicode.Hiragana, "katakana": unicode.Katakana,
	"hangul": unicode.Hangul, "cyrillic": unicode.Cyrillic, "arabic": unicode.Arabic, "devanagari": unicode.Devanagari,
	"greek": unicode.Greek, "hebrew": unicode.Hebrew, "thai": unicode.Thai, "tamil": unicode.Tamil, "georgian": unicode.Georgian,
}

var tokenWords = sync.OnceValue(func() map[string][]string {
	t := &testing.T{}
	ranks := published(t, "o200k_base")
	ordered := make([]string, 200_000)
	for token, rank := range ranks {
		ordered[rank] = token
	}
	words := map[string][]string{}
	for _, token := range ordered {
		word := strings.TrimSpace(token)
		if !utf8.ValidString(word) || word == "" {
			continue
		}
		for name, table := range scripts {
			first, _ := utf8.DecodeRuneInString(word)
			if unicode.Is(table, first) && strings.IndexFunc(word, func(r rune) bool { return !unicode.In(r, table, unicode.M) }) < 0 {
				words[name] = append(words[name], word)
			}
		}
	}
	return words
})

func newLexicon(seed uint64) *lexicon {
	return &lexicon{rng: rand.New(rand.NewPCG(seed, seed)), words: tokenWords()}
}

// word draws a word of a script.
func (l *lexicon) word(script string) string {
	w := l.words[script]
	w = w[:min(len(w), vocabularySize)]
	return w[int(math.Pow(float64(len(w)), l.rng.Float64()))-1]
}

// ident draws an identifier of one to three words.
func (l *lexicon) ident() string {
	id := strings.ToLower(l.word("english"))
	for range l.rng.IntN(3) {
		w := strings.ToLower(l.word("english"))
		id += strings.ToUpper(w[:1]) + w[1:]
	}
	return id
}

func (l *lexicon) sentence(script, space, stop string) string {
	var b strings.Builder
	for i := range 4 + l.rng.IntN(14) {
		if i > 0 {
			b.WriteString(space)
		}
		b.WriteString(l.word(script))
		if l.rng.IntN(9) == 0 {
			b.WriteString(",")
		}
	}
	b.WriteString(stop)
	return b.String()
}

// A corpus writes one more passage of its kind of text.
type corpus struct {
	kind string
	add  func(l *lexicon, b *strings.Builder)
}

var corpora = []corpus{
	{"source", addSource},
	{"log", func(l *lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "2026-03-%02dT%02d:%02d:%02d.%06dZ %s [%s] %s: %s id=%08x took=%dms\n", 1+l.rng.IntN(28), l.rng.IntN(24),
			l.rng.IntN(60), l.rng.IntN(60), l.rng.IntN(1e6), []string{"INFO", "WARN", "ERROR", "DEBUG"}[l.rng.IntN(4)], l.ident(), l.ident(),
			l.sentence("english", " ", ""), l.rng.Uint32(), l.rng.IntN(5000))
	}},
	{"json", addJSON},
	{"markdown", func(l *lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "## %s\n\n%s %s\n\n- **%s**: `%s` %s\n- [%s](https://example.com/%s/%s)\n\n```sh\n$ %s --%s=%d\n```\n\n| a | %s |\n|---|---|\n",
			l.sentence("english", " ", ""), l.sentence("english", " ", "."), l.sentence("english", " ", "!"), l.word("english"), l.ident(),
			l.sentence("english", " ", "."), l.word("english"), l.ident(), l.ident(), l.ident(), l.word("english"), l.rng.IntN(100), l.word("english"))
	}},
	{"html", func(l *lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "    <div class=\"%s %s\" id=\"%s-%d\">\n      <p>%s</p>\n      <a href=\"/%s/%s?q=%d&amp;x=%s\">%s</a>\n    </div>\n",
			l.ident(), l.ident(), l.ident(), l.rng.IntN(1000), l.sentence("english", " ", "."), l.ident(), l.ident(), l.rng.IntN(1000), l.ident(), l.word("english"))
	}},
	{"csv", func(l *lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "%d,%s,\"%s\",%.2f,%s,%04d-%02d-%02d,true\n", l.rng.IntN(1e6), l.word("english"), l.sentence("english", " ", ""),
			l.rng.Float64()*1e4, l.ident(), 1990+l.rng.IntN(40), 1+l.rng.IntN(12), 1+l.rng.IntN(28))
	}},
	{"minified", func(l *lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "function %s(e,t){return e.%s&&t(%d)?null:(n=e[%d],!%s.%s(\"%s\"))};var %s=%s||{};", l.ident(), l.ident(), l.rng.IntN(1000),
			l.rng.IntN(10), l.ident(), l.ident(), l.word("english"), l.ident(), l.ident())
	}},
	{"base64", func(l *lexicon, b *strings.Builder) {
		raw := make([]byte, 57)
		for i := range raw {
			raw[i] = byte(l.rng.Uint32())
		}
		b.WriteString(base64.StdEncoding.EncodeToString(raw) + "\n")
	}},
	{"chinese", func(l *lexicon, b *strings.Builder) { b.WriteString(l.sentence("han", "", "。")) }},
	{"japanese", func(l *lexicon, b *strings.Builder) {
		b.WriteString(l.word("han") + l.word("kana") + l.word("katakana") + l.word("kana") + []string{"", "、", "。\n"}[l.rng.IntN(3)])
	}},
	{"korean", func(l *lexicon, b *strings.Builder) { b.WriteString(l.sentence("hangul", " ", ".\n")) }},
	{"european", func(l *lexicon, b *strings.Builder) { b.WriteString(l.sentence("latin", " ", ".\n")) }},
	{"russian", func(l *lexicon, b *strings.Builder) { b.WriteString(l.sentence("cyrillic", " ", ".\n")) }},
	{"arabic", func(l *lexicon, b *strings.Builder) { b.WriteString(l.sentence("arabic", " ", ".\n")) }},
	{"hindi", func(l *lexicon, b *strings.Builder) { b.WriteString(l.sentence("devanagari", " ", "।\n")) }},
	{"other", func(l *lexicon, b *strings.Builder) {
		b.WriteString(l.sentence([]string{"greek", "hebrew", "thai", "tamil", "georgian"}[l.rng.IntN(5)], " ", ";\n"))
	}},
	{"adversarial", func(l *lexicon, b *strings.Builder) { b.WriteString(adversarial(l.rng, 40)) }},
}

func addSource(l *lexicon, b *strings.Builder) {
	fmt.Fprintf(b, "// %s %s\nfunc (%s *%s) %s(ctx context.Context, %s string) error {\n", l.ident(), l.sentence("english", " ", "."),
		l.word("english")[:1], l.ident(), l.ident(), l.ident())
	for range 1 + l.rng.IntN(6) {
		tabs := strings.Repeat("\t", 1+l.rng.IntN(4))
		switch l.rng.IntN(4) {
		case 0:
			fmt.Fprintf(b, "%sif err := %s.%s(%s, %d); err != nil {\n%s\treturn fmt.Errorf(\"%s: %%w\", err)\n%s}\n",
				tabs, l.ident(), l.ident(), l.ident(), l.rng.IntN(1000), tabs, l.sentence("english", " ", ""), tabs)
		case 1:
			fmt.Fprintf(b, "%sfor _, %s := range %s {\n%s\t%s[%d] += %s\n%s}\n", tabs, l.ident(), l.ident(), tabs, l.ident(), l.rng.IntN(64), l.ident(), tabs)
		case 2:
			fmt.Fprintf(b, "%s%s := &%s{%s: 0x%x, %s: %q}\n", tabs, l.ident(), l.ident(), l.ident(), l.rng.IntN(1<<20), l.ident(), l.word("english"))
		default:
			fmt.Fprintf(b, "%s// %s\n", tabs, l.sentence("english", " ", "."))
		}
	}
	b.WriteString("}\n\n")
}

func addJSON(l *lexicon, b *strings.Builder) {
	fmt.Fprintf(b, "{\"%s\":%d,\"%s\":\"%s\",\"%s\":[%d,%d,null,true],\"%s\":{\"%s\":\"%s\\n%s\",\"%s\":%v}}\n", l.ident(), l.rng.IntN(1e9), l.ident(),
		l.sentence("english", " ", "."), l.ident(), l.rng.IntN(100), l.rng.IntN(100), l.ident(), l.ident(), l.word("english"), l.word("cyrillic"),
		l.ident(), l.rng.Float64())
	if l.rng.IntN(4) == 0 {
		fmt.Fprintf(b, "{\n  \"%s\": \"%s\",\n    \"%s\": [\n      %d\n    ]\n}\n", l.ident(), l.word("english"), l.ident(), l.rng.IntN(1000))
	}
}

// goTree is real source text, where the Go tree is at hand.
var goTree = sync.OnceValue(func() string {
	files, _ := filepath.Glob(filepath.Join(build.Default.GOROOT, "src", "net", "http", "*.go"))
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil {
			b.Write(text)
		}
	}
	return b.String()
})

// mixedKinds are what tools return, in equal parts.
var mixedKinds = []string{"source", "log", "json", "markdown", "html", "csv", "chinese", "russian", "base64"}

// mixed returns about size bytes of the mixed kinds, a few kilobytes of each in turn.
func mixed(size int) string { return mixedFrom(1, size) }

// mixedFrom is mixed with other seeds, from the given one on.
func mixedFrom(seed uint64, size int) string {
	var b strings.Builder
	for ; b.Len() < size; seed++ {
		for _, c := range corpora {
			if slices.Contains(mixedKinds, c.kind) {
				b.WriteString(c.text(seed, 4<<10))
			}
		}
	}
	return b.String()
}

// text returns about size bytes of one kind.
func (c corpus) text(seed uint64, size int) string {
	l := newLexicon(seed)
	var b strings.Builder
	for b.Len() < size {
		c.add(l, &b)
	}
	return b.String()
}

// alphabet reaches every rule of every pattern, and what may be taken for one.
var alphabet = []string{
	"a", "b", "e", "l", "s", "t", "A", "B", "S", "LL", "RE", "Hello", "the", "中", "文", "彩票", "日", "あ", "한", "É", "é", "ß", "ǅ", "ʰ", "ª",
	"\u0301", "\u0903", "\u20dd", "\ufe0f", "\u200d", "👩", "👍🏽", "🇩🇪", "0", "12", "345", "٣", "Ⅷ", "½", " ", "  ", "    ", "\t", "\n", "\r", "\r\n", "\v", "\f",
	"\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "'", "'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'lL", "'d", "'x", "’s", "'ſ", "\u212a", "ſ",
	"!", "/", "//", "\\", ".", ",", ";", "(", ")", "{", "}", "\"", "-", "--", "=", "====", "_", "#", "$", "€", "→", "─", "\x00", "\x7f", "\ufeff", "\ufffd",
	"<|endoftext|>", "<|fim_prefix|>", "\xff", "\xc3", "\xe4\xb8", "\xed\xa0\x80", "\xf0\x9f", "\x80", "\xc0\x80", "\xf4\x90\x80\x80", "क", "्", "ष", "ि", "ก", "ำ", "ا", "ّ", "א",
}

// adversarial returns text of up to n parts of the alphabet, with runs and random code points.
func adversarial(rng *rand.Rand, n int) string {
	var b strings.Builder
	for range 1 + rng.IntN(n) {
		switch rng.IntN(12) {
		case 0:
			b.WriteString(strings.Repeat(alphabet[rng.IntN(len(alphabet))], 1+rng.IntN(40)))
		case 1:
			b.WriteRune(rune(rng.IntN(0x30000)))
		case 2:
			b.WriteByte(byte(rng.Uint32()))
		default:
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
	}
	return b.String()
}
