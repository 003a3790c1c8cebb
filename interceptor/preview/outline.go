package preview

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// outline collects the headings of a text by level.
type outline struct {
	entries
	levels [6][]int // lines
	names  []string // with their lines
}

// name adds the name of what line i has; "" adds nothing.
func (o *outline) name(i int, name string) {
	if name != "" {
		o.names = append(o.names, fmt.Sprint(name, " ", i+1))
	}
}

func (o *outline) put(level, i int) {
	level = min(level, len(o.levels)-1)
	o.levels[level] = append(o.levels[level], i)
}

// tell adds the headings, the outer ones first, evenly, and the totals of their fields.
func (o *outline) tell(f *findings, worth float64) {
	o.show = hide
	o.entries.tell(f)
	if len(o.names) > 1 {
		f.fact(2.5, "", o.names, nil)
	}
	for _, lines := range o.levels {
		if len(lines) == 0 {
			continue
		}
		spread(len(lines), func(i, rank int) { f.line(lines[i], "", narrow, worth/(1+float64(rank)/20)) })
		worth *= 0.6
	}
}

// readManual reads pages of manuals and help: their sections and options.
func readManual(f *findings) bool {
	if !isManual(f.sample) {
		return false
	}
	f.kind = Manual
	o := &outline{entries: entries{noun: "entry"}}
	for i, l := range f.lines {
		if m := option.FindString(l); m != "" {
			o.begin(i)
			o.set("class", "option")
			o.name(i, strings.TrimSpace(m))
			o.put(2, i)
		} else if m := command.FindStringSubmatch(l); m != nil {
			o.begin(i)
			o.set("class", "command")
			o.name(i, m[1])
			o.put(3, i)
		} else if manualHead.MatchString(l) {
			o.begin(i)
			o.set("class", "section")
			o.put(indent(l)/3, i)
		}
	}
	o.tell(f, 8)
	f.ends(0.6)
	return true
}

// readMarkdown reads Markdown and reStructuredText: their headings.
func readMarkdown(f *findings) bool {
	if !isMarkdown(f) {
		return false
	}
	f.kind = Markdown
	o := &outline{entries: entries{noun: "heading"}}
	fenced, blocks := false, 0
	for i, l := range f.lines {
		level := strings.IndexByte(l, ' ') - 1
		if i+1 < len(f.lines) && isUnderline(f.lines[i+1]) && strings.TrimSpace(l) != "" && !isUnderline(l) && (i == 0 || strings.TrimSpace(f.lines[i-1]) == "" || isUnderline(f.lines[i-1])) {
			level = strings.IndexByte("=-~^\"", f.lines[i+1][0])
		} else if !isHeading(l) {
			level = -1
		}
		switch {
		case strings.HasPrefix(strings.TrimSpace(l), "```"):
			if fenced = !fenced; fenced {
				blocks++
			}
		case !fenced && level >= 0:
			o.begin(i)
			o.put(level, i)
		}
	}
	if blocks > 0 {
		f.totals = append(f.totals, plural(blocks, "code block"))
	}
	o.tell(f, 8)
	f.ends(0.6)
	return true
}

// isMarkdown reports whether a text has headings with a blank line before them or a line of characters below
// them. Comments of scripts look like headings, but have neither.
func isMarkdown(f *findings) bool {
	spaced, underlined := 0, 0
	for i, l := range f.lines[:min(len(f.lines), 4*sampled)] {
		if isHeading(l) && (i == 0 || strings.TrimSpace(f.lines[i-1]) == "") && (i+1 == len(f.lines) || !isHeading(f.lines[i+1])) {
			spaced++
		}
		if before := len(f.lines[max(i-1, 0)]); isUnderline(l) && before > 0 && before <= len(l)+2 && before+12 > len(l) {
			underlined++
		}
	}
	heads := count(f.sample, isHeading)
	return (spaced >= 2 && spaced*3 > heads*2 || heads < 3 && underlined >= 2 && !strings.HasPrefix(f.lines[0], "#")) &&
		!strings.HasPrefix(f.lines[0], "#!") && share(f.sample, isCode) < 0.35 && count(f.sample, isDeclaration) <= heads+underlined
}

// readCode reads programs: their declarations and imports, and the rows that SQL inserts.
func readCode(f *findings) bool {
	code, decls := share(f.sample, isCode), count(f.sample, isDeclaration)
	if !strings.HasPrefix(f.lines[0], "#!") && (decls < 2 || code <= 0.35) && (decls < 3 || code <= 0.2) && (decls == 0 || code <= 0.6) {
		return false
	}
	f.kind = Code
	o := &outline{entries: entries{noun: "declaration"}}
	inserts := &entries{noun: "inserted row or batch", lead: "table"}
	var imports []string
	for i, l := range f.lines {
		if insert, ok := strings.CutPrefix(l, "INSERT INTO "); ok {
			inserts.begin(i)
			table, _, _ := strings.Cut(strings.TrimLeft(insert, "`\""), " ")
			inserts.set("table", strings.Trim(table, "`\"("))
		} else if name := importOf(l); name != "" {
			imports = append(imports, name)
		} else if isDeclaration(l) {
			class, name := declarationOf(l)
			o.begin(i)
			o.set("class", class)
			o.name(i, name)
			o.put(indent(l)/2, i)
		}
	}
	inserts.tell(f)
	if len(imports) > 0 {
		f.totals = append(f.totals, plural(len(imports), "import"))
		f.fact(7, "imports: ", imports, nil)
	}
	o.tell(f, 8)
	f.ends(0.6)
	return true
}

// isCode reports whether a line looks like a line of a program, and not of Markdown.
func isCode(l string) bool {
	return (looksCode(l) || isDeclaration(l)) && !isHeading(l) && !startsWith(l, []string{"- ", "* ", "[", "|", ">"})
}

// declarationOf returns what a declaration declares, such as "func", and its name, "" for none.
func declarationOf(l string) (class, name string) {
	m := declaration.FindStringSubmatchIndex(l)
	rest := l[m[1]:]
	for g := 2; g < len(m); g += 2 {
		if m[g] >= 0 {
			class, rest = strings.ToLower(l[m[g]:m[g+1]]), l[m[g+1]:]
		}
	}
	names := declared
	switch {
	case class != "":
	case strings.Contains(l, "("):
		class, rest, names = "function", l, called
	default:
		return "rule", strings.Trim(l, " \t{")
	}
	if found := names.FindStringSubmatch(rest); found != nil {
		name = found[1]
	}
	return class, name
}

func isHeading(l string) bool {
	t := strings.TrimLeft(l, "#")
	n := len(l) - len(t)
	return n >= 1 && n <= 6 && len(t) > 1 && t[0] == ' ' && !rule(t)
}

// isUnderline reports whether a line makes the line before it a heading, as in reStructuredText.
func isUnderline(l string) bool {
	return len(l) >= 4 && strings.IndexByte("=-~^\"", l[0]) >= 0 && strings.Trim(l, l[:1]) == ""
}

var (
	manualHead = regexp.MustCompile(`^(?:   )?[A-Z][A-Z0-9 /,()-]+$|^(?:[Uu]sage|[A-Z][\w ()]{2,50}):(?:$| )`)
	option     = regexp.MustCompile(`^\s{1,12}-{1,2}[\w?][\w-]*`)
	command    = regexp.MustCompile(`^ {2,4}([a-z][\w-]*)(?:, [a-z]\w*)? {2,}[A-Z]`)
)

// isManual reports whether a text has the sections of a manual page, or the options of a help page.
func isManual(sample []string) bool {
	heads, options := count(sample, manualHead.MatchString), count(sample, option.MatchString)+count(sample, command.MatchString)
	indented := share(sample, func(l string) bool { return l[0] == ' ' || l[0] == '\t' })
	if capitals := count(sample, func(l string) bool { return manualHead.MatchString(l) && l == strings.ToUpper(l) }); capitals < 2 {
		heads = min(heads, 2)
	}
	return indented > 0.55 && (heads >= 3 && share(sample, looksCode) < 0.3 || options >= 4 && heads >= 1 || options*4 > len(sample) && options >= 8)
}

func isDeclaration(l string) bool {
	return len(l) < 300 && mayDeclare(strings.TrimSpace(l)) && indent(l) <= 8 && declaration.MatchString(l) && !notDeclaration.MatchString(l)
}

// mayDeclare is false for most lines, because the expressions take much longer.
func mayDeclare(t string) bool {
	if t == "" {
		return false
	}
	switch call := strings.IndexByte(t, '('); t[len(t)-1] {
	case '{':
		return true
	case ';', ',', ')':
		if call > 0 && strings.IndexByte(t, '=') < 0 && (strings.ContainsAny(t[:call], " *") || strings.HasSuffix(t, "()")) {
			return true
		}
	}
	end := strings.IndexFunc(t, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '@' && r != '-' && r != '_'
	})
	if end < 0 {
		end = len(t)
	}
	return end == 0 && t[0] == '#' || declares[t[:end]]
}

// declares are the words that declarations start with.
var declares = words("export default declare pub public private protected internal static async abstract final override unsafe extern sealed partial inline " +
	"func function def class interface type struct enum impl trait fn mod module namespace package record protocol extension sub typedef @media @keyframes @font-face " +
	"message service input scalar union extend schema directive oneof resource variable rpc const var let TEXT CREATE ALTER create alter")

func words(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		set[w] = true
	}
	return set
}

// declaration matches lines that declare a name, in most languages.
var declaration = regexp.MustCompile(`^\s*(?:(?:export|default|declare|pub(?:\([a-z]+\))?|public|private|protected|internal|static|async|abstract|final|override|unsafe|extern|sealed|partial|inline)\s+)*` +
	`(?:(func|function|def|class|interface|type|struct|enum|impl|trait|fn|mod|module|namespace|package|record|protocol|extension|sub|typedef|@media|@keyframes|@font-face)\b[\s(*]` +
	`|(message|service|input|scalar|union|extend|schema|directive|oneof|resource|variable|rpc)\s+["@\w][^=]*[{)\w]\s*$` +
	`|(?:const|var|let)\s+[A-Za-z_$][\w$]*\s*(?::[^=]+)?=\s*(?:async\s*)?(?:\(|function\b|class\b)` +
	`|#\s*(define) \w|(TEXT) \S` +
	`|((?i:CREATE|ALTER)\s+(?:(?i:OR REPLACE|UNIQUE|VIRTUAL|TEMP|TEMPORARY)\s+)*(?i:TABLE|VIEW|INDEX|FUNCTION|TRIGGER|PROCEDURE|SEQUENCE|TYPE|SCHEMA))\b` +
	`|[.#@:*a-z\[][\w .#:>,*()\[\]="'-]*\{\s*$` +
	`|[\w-]+\s*\(\)\s*\{?\s*$` +
	`|[A-Za-z_][\w:<>,*&\[\] ]+[ *&][\w:~]+\([^;=]*\)\s*(?:const\s*)?(?:throws\s[\w, ]+)?\{\s*$` +
	`|[A-Za-z_][\w ]+[ *]\w+\s*\([^;={}]*(?:\)\s*(?:__\w+\s*(?:\(\(.*\)\))?\s*)*;|,)\s*$)`)

// imported matches lines that name another file or module.
var imported = regexp.MustCompile(`^\s*(?:(?:import|export|from)\b(?:.*\bfrom)?\s+(?:"([^"]+)"|'([^']+)'|([\w.]+)(?: import |;|$))|#\s*include\s+[<"]([^>"]+)|use\s+([\w:]+)\b.*;|(?:const|let|var|import)\b.*\brequire\(["']([^"']+))`)

// isComment reports whether a line of a program looks like a comment only.
func isComment(l string) bool {
	return startsWith(l, []string{"//", "/*", " *", "# ", "#\t", "#!", "--", ";"}) || strings.Trim(l, "# \t") == ""
}

// importOf returns what a line imports, "" for most lines.
func importOf(l string) string {
	if len(l) > 300 || !containsAny(l, importWords) {
		return ""
	}
	if m := imported.FindStringSubmatch(l); m != nil {
		return cmp.Or(m[1:]...)
	}
	return ""
}

var importWords = []string{"import", "from", "#include", "# include", "use ", "require"}

// declared matches the name behind the word that declares it.
var declared = regexp.MustCompile(`^[\s"*]*(?:\([^)]*\) *)?([@\w$.:~-]+)`)

var called = regexp.MustCompile(`([\w:~]+)\s*\(`)

// notDeclaration matches statements that look like functions of C and Java.
var notDeclaration = regexp.MustCompile(`^\s*(?:\}?\s*else\b|if\b|for\b|foreach\b|while\b|switch\b|catch\b|return\b|do\b|try\b|with\b|elif\b|case\b|#\s*[^d]|//|\*[ /]|assert\b|await\b|throw\b|new\b|end\w*\s*\()`)

// looksCode reports whether a line starts or ends like a line of a program.
func looksCode(l string) bool {
	t := strings.TrimSpace(l)
	if t == "" {
		return false
	}
	switch t[len(t)-1] {
	case '{', '}', ';', ')', '(', ',':
		return true
	case ':':
		return !strings.Contains(t, ". ") && isDeclaration(l) || strings.HasPrefix(t, "if ") || strings.HasPrefix(t, "for ") || t == "else:" || t == "try:"
	}
	return startsWith(t, codeStarts) || strings.Contains(t, " = ") || strings.Contains(t, " := ")
}

var codeStarts = []string{"import ", "from ", "return", "self.", "this.", "//", "#include", "#define ", "#if", "#endif", "use ", "let ", "const ", "var ", "end", "fi", "then", "done", "esac", "/*", "*/", "-- "}

// key splits a line of YAML, or of key: value, into its parts. ok is false if it has no key.
func key(l string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(strings.Replace(l, ":\t", ": ", 1), ": ")
	if !ok {
		name, ok = strings.CutSuffix(l, ":")
	}
	if !ok || len(name) > 80 {
		return "", "", false
	}
	name = strings.Trim(name, "\"' \t")
	return name, strings.TrimSpace(value), name != "" && !strings.ContainsAny(name, "{}[]=;,") && strings.Count(name, " ") < 4
}

// readConfig reads sections with keys, as in INI and TOML, and lines of key=value.
func readConfig(f *findings) bool {
	assigned := count(f.sample, assignment.MatchString)
	sections := count(f.sample, section.MatchString)
	comments := count(f.sample, comment.MatchString)
	rest := count(f.sample, func(l string) bool {
		return strings.HasPrefix(l, "#") || strings.HasPrefix(l, ";") || strings.HasPrefix(l, " ") || l == "]"
	})
	key, level := assignment, 2 // the comments say more
	if all := comments + count(f.sample, setting.MatchString); comments*2 > len(f.sample) &&
		(all*20 > len(f.sample)*19 && share(f.sample, looksCode) < 0.3 || assigned > 3 && (comments+assigned)*20 > len(f.sample)*19) {
		key, level = setting, 1 // most of it is comments
	} else if assigned < 4 && sections < 2 || (assigned+sections+rest)*10 < len(f.sample)*8 || (assigned+sections)*10 < len(f.sample)*2 || share(f.sample, looksCode) > 0.5 && sections == 0 && share(f.sample, assignment.MatchString) < 0.9 {
		return false
	}
	f.kind = Config
	o := &outline{entries: entries{noun: "key"}}
	heads, quotes := 0, ""
	for i, l := range f.lines {
		if quotes != "" { // in a text of several lines
			if strings.Contains(l, quotes) {
				quotes = ""
			}
			continue
		}
		for _, q := range []string{`"""`, "'''"} {
			if strings.Count(l, q) == 1 {
				quotes = q
			}
		}
		if section.MatchString(l) {
			heads++
			o.around, o.value = "section", strings.Trim(l, "[] ")
			o.put(0, i)
		} else if isComment(l) && (i == 0 || f.lines[i-1] == "") {
			o.put(3-level, i) // the first line of a block
		} else if m := key.FindStringSubmatch(l); m != nil {
			o.begin(i)
			name, _, _ := strings.Cut(m[1], ".")
			if heads == 0 && name != m[1] {
				o.set("prefix", name)
			}
			o.put(level, i)
		}
	}
	f.totals = append(f.totals, plural(heads, "section"))
	o.tell(f, 6)
	f.ends(0.7)
	return true
}

var (
	comment    = regexp.MustCompile(`^\s*[#;](?:\D|$)`)
	setting    = regexp.MustCompile(`^\s*([A-Za-z_][\w.-]*)(?:[ \t]+[^\s=]|\s*=)`)
	section    = regexp.MustCompile(`^\s*\[+[^\[\]]+\]+\s*$`)
	assignment = regexp.MustCompile(`^\s*(?:export )?"?([A-Za-z_][\w."/@-]*(?: [\w."/@-]+)*?)"?\s*=`)
)

// recordRule matches the lines before the records of MySQL and PostgreSQL, of which the keys are aligned.
var recordRule = regexp.MustCompile(`^(?:\*{5,} \d+\. row \*{5,}|-\[ RECORD \d+ \][-+]*)$`)

// readRecords reads paragraphs of "Key: value".
func readRecords(f *findings) bool {
	ruled := count(f.sample, recordRule.MatchString) > 1
	field := func(l string) (name, value string, ok bool) {
		if ruled {
			l = strings.Replace(strings.TrimSpace(l), " | ", ": ", 1)
		} else if startsWith(l, []string{" ", "\t", "- "}) {
			return "", "", false
		}
		return key(l)
	}
	kinds := map[string]bool{}
	last, keys, again, more := "", 0, 0, 0
	for _, l := range f.sample {
		if name, _, ok := field(l); ok {
			name = strings.TrimRight(name, "0123456789") // numbered lines have one kind of key
			if keys++; name == last {
				again++
			}
			last, kinds[name] = name, true
		} else if l[0] == ' ' || l[0] == '\t' || recordRule.MatchString(l) {
			more++
		}
	}
	if keys < 6 || (keys+more)*20 < len(f.sample)*19 || keys*2 < len(f.sample) || len(kinds) < 3 || again*5 > keys {
		return false
	}
	f.kind = Records
	e := &entries{noun: "record"}
	first, fresh := "", true
	for i, l := range f.lines {
		switch name, value, ok := field(l); {
		case strings.TrimSpace(l) == "" || recordRule.MatchString(l):
			fresh = true
		case ok:
			if len(e.lines) == 0 || name == first || fresh && len(e.cols) > 0 && e.by[name] != nil && e.by[name].last == len(e.lines)-1 {
				e.begin(i)
				if first == "" {
					first = name
				}
			}
			e.set(name, value)
			fresh = false
		}
	}
	e.lead = first
	e.tell(f)
	f.ends(1)
	return true
}
