// Package corpus writes texts for the tests and benchmarks of package budget and
// its tokenizer: source, logs, prose of many scripts, and text that is hostile.
package corpus

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
	"unicode"
	"unicode/utf8"

	loader "github.com/pkoukk/tiktoken-go-loader"
)

const vocabularySize = 20_000

// A Lexicon draws words of a script. They are the tokens of o200k_base that are
// written in it, drawn by Zipf's law with the lower ranks as the frequent words
// and no more than vocabularySize of them, which is still more variety than
// source text has.
type Lexicon struct {
	Rand  *rand.Rand
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
	ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe("o200k_base.tiktoken")
	if err != nil {
		panic(err) // embedded
	}
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

// NewLexicon returns a lexicon that draws by seed.
func NewLexicon(seed uint64) *Lexicon {
	return &Lexicon{Rand: rand.New(rand.NewPCG(seed, seed)), words: tokenWords()}
}

// Word draws a word of a script.
func (l *Lexicon) Word(script string) string {
	w := l.words[script]
	w = w[:min(len(w), vocabularySize)]
	return w[int(math.Pow(float64(len(w)), l.Rand.Float64()))-1]
}

// ident draws an identifier of one to three words.
func (l *Lexicon) ident() string {
	id := strings.ToLower(l.Word("english"))
	for range l.Rand.IntN(3) {
		w := strings.ToLower(l.Word("english"))
		id += strings.ToUpper(w[:1]) + w[1:]
	}
	return id
}

func (l *Lexicon) sentence(script, space, stop string) string {
	var b strings.Builder
	for i := range 4 + l.Rand.IntN(14) {
		if i > 0 {
			b.WriteString(space)
		}
		b.WriteString(l.Word(script))
		if l.Rand.IntN(9) == 0 {
			b.WriteString(",")
		}
	}
	b.WriteString(stop)
	return b.String()
}

// A Kind writes one more passage of its kind of text.
type Kind struct {
	Name string
	add  func(l *Lexicon, b *strings.Builder)
}

// Kinds are all kinds of text.
var Kinds = []Kind{
	{"source", addSource},
	{"log", func(l *Lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "2026-03-%02dT%02d:%02d:%02d.%06dZ %s [%s] %s: %s id=%08x took=%dms\n", 1+l.Rand.IntN(28), l.Rand.IntN(24),
			l.Rand.IntN(60), l.Rand.IntN(60), l.Rand.IntN(1e6), []string{"INFO", "WARN", "ERROR", "DEBUG"}[l.Rand.IntN(4)], l.ident(), l.ident(),
			l.sentence("english", " ", ""), l.Rand.Uint32(), l.Rand.IntN(5000))
	}},
	{"json", addJSON},
	{"markdown", func(l *Lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "## %s\n\n%s %s\n\n- **%s**: `%s` %s\n- [%s](https://example.com/%s/%s)\n\n```sh\n$ %s --%s=%d\n```\n\n| a | %s |\n|---|---|\n",
			l.sentence("english", " ", ""), l.sentence("english", " ", "."), l.sentence("english", " ", "!"), l.Word("english"), l.ident(),
			l.sentence("english", " ", "."), l.Word("english"), l.ident(), l.ident(), l.ident(), l.Word("english"), l.Rand.IntN(100), l.Word("english"))
	}},
	{"html", func(l *Lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "    <div class=\"%s %s\" id=\"%s-%d\">\n      <p>%s</p>\n      <a href=\"/%s/%s?q=%d&amp;x=%s\">%s</a>\n    </div>\n",
			l.ident(), l.ident(), l.ident(), l.Rand.IntN(1000), l.sentence("english", " ", "."), l.ident(), l.ident(), l.Rand.IntN(1000), l.ident(), l.Word("english"))
	}},
	{"csv", func(l *Lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "%d,%s,\"%s\",%.2f,%s,%04d-%02d-%02d,true\n", l.Rand.IntN(1e6), l.Word("english"), l.sentence("english", " ", ""),
			l.Rand.Float64()*1e4, l.ident(), 1990+l.Rand.IntN(40), 1+l.Rand.IntN(12), 1+l.Rand.IntN(28))
	}},
	{"minified", func(l *Lexicon, b *strings.Builder) {
		fmt.Fprintf(b, "function %s(e,t){return e.%s&&t(%d)?null:(n=e[%d],!%s.%s(\"%s\"))};var %s=%s||{};", l.ident(), l.ident(), l.Rand.IntN(1000),
			l.Rand.IntN(10), l.ident(), l.ident(), l.Word("english"), l.ident(), l.ident())
	}},
	{"base64", func(l *Lexicon, b *strings.Builder) {
		raw := make([]byte, 57)
		for i := range raw {
			raw[i] = byte(l.Rand.Uint32())
		}
		b.WriteString(base64.StdEncoding.EncodeToString(raw) + "\n")
	}},
	{"chinese", func(l *Lexicon, b *strings.Builder) { b.WriteString(l.sentence("han", "", "。")) }},
	{"japanese", func(l *Lexicon, b *strings.Builder) {
		b.WriteString(l.Word("han") + l.Word("kana") + l.Word("katakana") + l.Word("kana") + []string{"", "、", "。\n"}[l.Rand.IntN(3)])
	}},
	{"korean", func(l *Lexicon, b *strings.Builder) { b.WriteString(l.sentence("hangul", " ", ".\n")) }},
	{"european", func(l *Lexicon, b *strings.Builder) { b.WriteString(l.sentence("latin", " ", ".\n")) }},
	{"russian", func(l *Lexicon, b *strings.Builder) { b.WriteString(l.sentence("cyrillic", " ", ".\n")) }},
	{"arabic", func(l *Lexicon, b *strings.Builder) { b.WriteString(l.sentence("arabic", " ", ".\n")) }},
	{"hindi", func(l *Lexicon, b *strings.Builder) { b.WriteString(l.sentence("devanagari", " ", "।\n")) }},
	{"other", func(l *Lexicon, b *strings.Builder) {
		b.WriteString(l.sentence([]string{"greek", "hebrew", "thai", "tamil", "georgian"}[l.Rand.IntN(5)], " ", ";\n"))
	}},
	{"adversarial", func(l *Lexicon, b *strings.Builder) { b.WriteString(Adversarial(l.Rand, 40)) }},
}

func addSource(l *Lexicon, b *strings.Builder) {
	fmt.Fprintf(b, "// %s %s\nfunc (%s *%s) %s(ctx context.Context, %s string) error {\n", l.ident(), l.sentence("english", " ", "."),
		l.Word("english")[:1], l.ident(), l.ident(), l.ident())
	for range 1 + l.Rand.IntN(6) {
		tabs := strings.Repeat("\t", 1+l.Rand.IntN(4))
		switch l.Rand.IntN(4) {
		case 0:
			fmt.Fprintf(b, "%sif err := %s.%s(%s, %d); err != nil {\n%s\treturn fmt.Errorf(\"%s: %%w\", err)\n%s}\n",
				tabs, l.ident(), l.ident(), l.ident(), l.Rand.IntN(1000), tabs, l.sentence("english", " ", ""), tabs)
		case 1:
			fmt.Fprintf(b, "%sfor _, %s := range %s {\n%s\t%s[%d] += %s\n%s}\n", tabs, l.ident(), l.ident(), tabs, l.ident(), l.Rand.IntN(64), l.ident(), tabs)
		case 2:
			fmt.Fprintf(b, "%s%s := &%s{%s: 0x%x, %s: %q}\n", tabs, l.ident(), l.ident(), l.ident(), l.Rand.IntN(1<<20), l.ident(), l.Word("english"))
		default:
			fmt.Fprintf(b, "%s// %s\n", tabs, l.sentence("english", " ", "."))
		}
	}
	b.WriteString("}\n\n")
}

func addJSON(l *Lexicon, b *strings.Builder) {
	fmt.Fprintf(b, "{\"%s\":%d,\"%s\":\"%s\",\"%s\":[%d,%d,null,true],\"%s\":{\"%s\":\"%s\\n%s\",\"%s\":%v}}\n", l.ident(), l.Rand.IntN(1e9), l.ident(),
		l.sentence("english", " ", "."), l.ident(), l.Rand.IntN(100), l.Rand.IntN(100), l.ident(), l.ident(), l.Word("english"), l.Word("cyrillic"),
		l.ident(), l.Rand.Float64())
	if l.Rand.IntN(4) == 0 {
		fmt.Fprintf(b, "{\n  \"%s\": \"%s\",\n    \"%s\": [\n      %d\n    ]\n}\n", l.ident(), l.Word("english"), l.ident(), l.Rand.IntN(1000))
	}
}

// GoTree is real source text, where the Go tree is at hand.
var GoTree = sync.OnceValue(func() string {
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

// mixedKinds are the usual kinds of results of tools, in equal parts.
var mixedKinds = []string{"source", "log", "json", "markdown", "html", "csv", "chinese", "russian", "base64"}

// Mixed returns about size bytes of the mixed kinds, a few kilobytes of each in turn.
func Mixed(size int) string { return MixedFrom(1, size) }

// MixedFrom is Mixed with other seeds, from the given one on.
func MixedFrom(seed uint64, size int) string {
	var b strings.Builder
	for ; b.Len() < size; seed++ {
		for _, c := range Kinds {
			if slices.Contains(mixedKinds, c.Name) {
				b.WriteString(c.Text(seed, 4<<10))
			}
		}
	}
	return b.String()
}

// Text returns about size bytes of one kind.
func (c Kind) Text(seed uint64, size int) string {
	l := NewLexicon(seed)
	var b strings.Builder
	for b.Len() < size {
		c.add(l, &b)
	}
	return b.String()
}

// Alphabet reaches every rule of every pattern, and near misses of the rules.
var Alphabet = []string{
	"a", "b", "e", "l", "s", "t", "A", "B", "S", "LL", "RE", "Hello", "the", "中", "文", "彩票", "日", "あ", "한", "É", "é", "ß", "ǅ", "ʰ", "ª",
	"\u0301", "\u0903", "\u20dd", "\ufe0f", "\u200d", "👩", "👍🏽", "🇩🇪", "0", "12", "345", "٣", "Ⅷ", "½", " ", "  ", "    ", "\t", "\n", "\r", "\r\n", "\v", "\f",
	"\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "'", "'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'lL", "'d", "'x", "’s", "'ſ", "\u212a", "ſ",
	"!", "/", "//", "\\", ".", ",", ";", "(", ")", "{", "}", "\"", "-", "--", "=", "====", "_", "#", "$", "€", "→", "─", "\x00", "\x7f", "\ufeff", "\ufffd",
	"<|endoftext|>", "<|fim_prefix|>", "\xff", "\xc3", "\xe4\xb8", "\xed\xa0\x80", "\xf0\x9f", "\x80", "\xc0\x80", "\xf4\x90\x80\x80", "क", "्", "ष", "ि", "ก", "ำ", "ا", "ّ", "א",
}

// Adversarial returns text of up to n parts of the Alphabet, with runs and random code points.
func Adversarial(rng *rand.Rand, n int) string {
	var b strings.Builder
	for range 1 + rng.IntN(n) {
		switch rng.IntN(12) {
		case 0:
			b.WriteString(strings.Repeat(Alphabet[rng.IntN(len(Alphabet))], 1+rng.IntN(40)))
		case 1:
			b.WriteRune(rune(rng.IntN(0x30000)))
		case 2:
			b.WriteByte(byte(rng.Uint32()))
		default:
			b.WriteString(Alphabet[rng.IntN(len(Alphabet))])
		}
	}
	return b.String()
}
